"""The residual stream: when the bank grows, what is pushed, what the prefix holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantaudit.core.site import Point, Site
from quantaudit.model.block import DecoderLayer, Stream
from quantaudit.model.config import ModelConfig
from quantaudit.model.tap import untapped
from tests.model.small_models import STRANGE, build_model, draw_tokens, segments
from tests.model.taps import Recorder

TOKENS = draw_tokens(STRANGE, 6, seed=1)


def streams(config: ModelConfig) -> tuple[list[Stream], Recorder]:
    """Returns the stream before the first layer and after each, with what was seen."""
    model, seen = build_model(config, seed=2), Recorder()
    held = [Stream(prefix_ND=model.model.embed_tokens(TOKENS), bank=())]
    for layer in model.model.layers:
        held.append(layer(held[-1], segments(len(TOKENS)), None, seen))
    return held, seen


@torch.no_grad()
@pytest.mark.parametrize(
    ("block", "lengths"),
    [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [1, 1, 1, 2, 2, 2, 3]), (4, [1, 1, 1, 1, 2, 2, 2]), (7, [1] * 7)],
)
def test_bank_grows_only_where_a_block_opens(block: int, lengths: list[int]) -> None:
    held, _ = streams(replace(STRANGE, attn_res_block_size=block))
    assert [len(stream.bank) for stream in held[1:]] == lengths


@torch.no_grad()
def test_unmixed_prefix_is_pushed_and_a_new_one_starts() -> None:
    held, seen = streams(STRANGE)
    assert torch.equal(held[1].bank[0], held[0].prefix_ND)  # the embeddings
    assert torch.equal(held[4].bank[1], held[3].prefix_ND)
    assert torch.equal(held[7].bank[2], held[6].prefix_ND)
    for layer in range(7):
        attended = seen[Site(layer, Point.ATTN_OUT)]
        before = attended if layer % 3 == 0 else held[layer].prefix_ND + attended
        assert torch.equal(held[layer + 1].prefix_ND, before + seen[Site(layer, Point.MLP_OUT)])


@torch.no_grad()
def test_first_layer_reads_the_embeddings_unmixed() -> None:
    held, seen = streams(STRANGE)
    assert torch.equal(seen[Site(0, Point.ATTN_IN)], held[0].prefix_ND)


@torch.no_grad()
def test_layer_that_opens_a_block_still_mixes_the_finished_block() -> None:
    # Its attention reads the bank and the finished sum, which is not in the bank yet; its MLP reads it from the bank.
    held, seen = streams(STRANGE)
    layer = build_model(STRANGE, seed=2).model.layers[3]
    assert isinstance(layer, DecoderLayer)
    altered = Stream(prefix_ND=held[3].prefix_ND + 1.0, bank=held[3].bank)
    changed = Recorder()
    layer(altered, segments(len(TOKENS)), None, changed)
    assert not torch.equal(changed[Site(3, Point.ATTN_IN)], seen[Site(3, Point.ATTN_IN)])


@torch.no_grad()
def test_stream_given_to_a_layer_is_not_changed() -> None:
    held, _ = streams(STRANGE)
    layer = build_model(STRANGE, seed=2).model.layers[3]
    before, length = held[3].prefix_ND.clone(), len(held[3].bank)
    layer(held[3], segments(len(TOKENS)), None, untapped)
    assert torch.equal(held[3].prefix_ND, before)
    assert len(held[3].bank) == length


def test_modules_follow_the_configuration() -> None:
    layers = build_model(STRANGE, seed=2).model.layers
    assert [type(layer.self_attn).__name__ for layer in layers] == [
        "GatedLatentAttention" if i in (1, 4) else "KimiDeltaAttention" for i in range(7)
    ]
    assert [hasattr(layer, "block_sparse_moe") for layer in layers] == [i in (2, 4, 6) for i in range(7)]
