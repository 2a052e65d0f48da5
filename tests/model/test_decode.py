"""Prefill and decoding give what one forward over everything gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.site import Point, Site
from quantaudit.model.cache import Cache
from quantaudit.model.lm import LanguageModel
from tests.model.small_models import STRANGE, WIDEST, build_model, draw_tokens, segments
from tests.model.taps import Recorder
from tests.tolerances import whole_stack

# Three sequences of different lengths, each cut at different places; chunks are 16 tokens long.
WHOLE = (23, 9, 40)
PLANS = {
    "token by token": [(20, 6, 37), (1, 1, 1), (1, 1, 1), (1, 1, 1)],
    "from the first token": [(1, 1, 1)] * 3 + [(20, 6, 37)],
    "one continuation": [(4, 1, 30), (19, 8, 10)],
    "several uneven continuations": [(2, 3, 17), (16, 1, 2), (1, 1, 1), (4, 4, 20)],
}


@pytest.fixture(scope="module")
def strange() -> LanguageModel:
    return build_model(STRANGE, seed=4)


def sequences() -> list[Tensor]:
    return [draw_tokens(STRANGE, length, seed=length) for length in WHOLE]


def step(model: LanguageModel, parts: list[Tensor], cache: Cache, tap: Recorder) -> tuple[Tensor, ...]:
    lengths = tuple(len(part) for part in parts)
    logits = model(torch.cat(parts), segments(*lengths), cache=cache, tap=tap, dtype=torch.float64)
    return torch.split(logits, list(lengths))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@torch.no_grad()
def test_cached_calls_equal_the_full_forward(strange: LanguageModel, plan: list[tuple[int, ...]]) -> None:
    assert tuple(sum(column) for column in zip(*plan, strict=True)) == WHOLE
    tokens, cache, taken = sequences(), Cache(), [0, 0, 0]
    logits: list[list[Tensor]] = [[], [], []]
    ids: list[list[Tensor]] = [[], [], []]
    for lengths in plan:
        seen = Recorder()
        parts = [t[start : start + n] for t, start, n in zip(tokens, taken, lengths, strict=True)]
        for b, out in enumerate(step(strange, parts, cache, seen)):
            logits[b].append(out)
            ids[b].append(
                torch.stack([seen[Site(i, Point.TOP_K_IDS)].split(lengths)[b] for i in STRANGE.moe_layers()], 1)
            )
        taken = [start + n for start, n in zip(taken, lengths, strict=True)]
    for b, whole in enumerate(tokens):
        seen = Recorder()
        expected = strange(whole, segments(len(whole)), tap=seen, dtype=torch.float64)
        tolerance = whole_stack(torch.float64, layers=7, width=WIDEST, scale=float(expected.abs().max()))
        assert (torch.cat(logits[b]) - expected).abs().max() <= tolerance
        routed = torch.stack([seen[Site(i, Point.TOP_K_IDS)] for i in STRANGE.moe_layers()], 1)
        assert torch.equal(torch.cat(ids[b]), routed)
    assert cache.latent[1].lengths_B.tolist() == list(WHOLE)


@torch.no_grad()
def test_caches_end_equal_however_the_tokens_came(strange: LanguageModel) -> None:
    ends = []
    for plan in ([WHOLE], PLANS["token by token"]):
        cache, taken = Cache(), [0, 0, 0]
        for lengths in plan:
            parts = [t[start : start + n] for t, start, n in zip(sequences(), taken, lengths, strict=True)]
            step(strange, parts, cache, Recorder())
            taken = [start + n for start, n in zip(taken, lengths, strict=True)]
        ends.append(cache)
    for layer in (0, 2, 3, 5, 6):
        a, b = ends[0].kda[layer], ends[1].kda[layer]
        torch.testing.assert_close(a.state_BHKV, b.state_BHKV, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(a.window_BCW, b.window_BCW, rtol=1e-11, atol=1e-11)
    for layer in (1, 4):
        torch.testing.assert_close(
            ends[0].latent[layer].latent_BSR, ends[1].latent[layer].latent_BSR, rtol=1e-11, atol=1e-11
        )


@torch.no_grad()
def test_a_forward_with_an_empty_cache_is_the_forward_without_one(strange: LanguageModel) -> None:
    tokens = draw_tokens(STRANGE, 18, seed=1)
    cached = strange(tokens, segments(18), cache=Cache(), dtype=torch.float64)
    assert torch.equal(cached, strange(tokens, segments(18), dtype=torch.float64))


@torch.no_grad()
def test_selected_positions_are_rows_of_all_logits(strange: LanguageModel) -> None:
    tokens, wanted = draw_tokens(STRANGE, 12, seed=2), torch.tensor([11, 3])
    some = strange(tokens, segments(12), selected_M=wanted, dtype=torch.float64)
    everything = strange(tokens, segments(12), dtype=torch.float64)
    torch.testing.assert_close(some, everything[wanted], rtol=1e-13, atol=1e-14)


@torch.no_grad()
def test_fp32_and_bf16_decode_what_they_prefill() -> None:
    model = build_model(STRANGE, seed=5, dtype=torch.float32)
    tokens = draw_tokens(STRANGE, 20, seed=3)
    for dtype in (torch.float32, torch.bfloat16):
        whole = model(tokens, segments(20), dtype=dtype).float()
        cache = Cache()
        parts = [tokens[:17], tokens[17:18], tokens[18:]]
        cached = torch.cat([model(part, segments(len(part)), cache=cache, dtype=dtype) for part in parts]).float()
        tolerance = whole_stack(dtype, layers=7, width=WIDEST, scale=float(whole.abs().max()))
        assert (cached - whole).abs().max() <= tolerance
