"""Layers, mixtures, tail and memory of the reference checkpoint, from the part that is committed.

The reference values were computed by the released model code; `make_oracle_fixture.py` says what is kept of them.
Layer by layer, each given the reference's own inputs: an error is found where it is made, in fp64 to 1e-9.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from quantaudit.checkpoint.config_json import parse_config
from quantaudit.core.site import Point, Site
from quantaudit.model.attn_residual import NormWeight, PseudoQuery, mix_sources
from quantaudit.model.block import DecoderLayer, Stream
from quantaudit.model.cache import Cache
from quantaudit.model.config import ModelConfig
from quantaudit.model.kda import KimiDeltaAttention
from quantaudit.model.norm import RMSNorm
from quantaudit.model.tap import untapped
from tests.model.make_oracle_fixture import FIXTURE, NUM_LOGITS, NUM_ROUTED, read_tensors
from tests.model.small_models import segments
from tests.model.taps import Recorder
from tests.tolerances import ORACLE_ACTIVATIONS, ORACLE_ROUTER_WEIGHTS, ORACLE_STATE

WIDTHS = [torch.float32, torch.float64]
AT = "len17.layer"
ROOT = "language_model.model."


@cache
def part() -> dict[str, Tensor]:
    return read_tensors(FIXTURE)


@cache
def config() -> ModelConfig:
    with safe_open(FIXTURE, "pt") as file:
        source = json.loads(file.metadata()["source"])
    return parse_config(source["config"], str(FIXTURE)).model


def build_layer(number: int, dtype: torch.dtype) -> DecoderLayer:
    """Returns a layer with the committed weights; experts that were left out are NaN, so that none is used unseen."""
    layer = DecoderLayer(config(), number)
    own = f"{ROOT}layers.{number}."
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if ".experts.w" in name:
                parameter.fill_(float("nan"))
                before, matrix = name.split(".experts.")
                for expert in range(config().num_experts):
                    if (stored := part().get(f"{own}{before}.experts.{expert}.{matrix}")) is not None:
                        parameter[expert] = stored
                continue
            stored = part()[own + name]
            # A_log is padded with zeros beyond the heads, on disk.
            parameter.copy_(stored[: len(parameter)] if name.endswith("A_log") else stored)
    return layer.to(dtype).eval()


def embedded(which: str, dtype: torch.dtype) -> Tensor:
    return part()[f"embedded.{which}"].to(dtype)


def prefix(layer: int, dtype: torch.dtype) -> Tensor:
    """Returns the reference's prefix after a layer, computed in fp64."""
    return part()[f"f64.{AT}.{layer}.prefix"].to(dtype)


def assert_matches(actual: Tensor, name: str, tolerance: float) -> None:
    expected = part()[name]
    if name.startswith("f64."):
        assert expected.dtype is torch.float64
    difference = (actual.double() - expected[: len(actual)].double()).abs()
    assert difference.max() <= tolerance, f"{name}: {difference.max()}"


@pytest.mark.parametrize("dtype", WIDTHS)
@torch.no_grad()
def test_dense_layer_from_the_embeddings(dtype: torch.dtype) -> None:
    seen = Recorder()
    out = build_layer(0, dtype)(Stream(prefix_ND=embedded("prompt", dtype), bank=()), segments(17), None, seen)
    fp32 = ORACLE_ACTIVATIONS[torch.float32]
    for point, name in ((Point.ATTN_IN, "attn_in_mixed"), (Point.ATTN_OUT, "attn_out")):
        assert_matches(seen[Site(0, point)], f"{AT}.0.{name}", fp32)
    for point, name in ((Point.MLP_IN, "mlp_in_mixed"), (Point.MLP_OUT, "mlp_out")):
        assert_matches(seen[Site(0, point)], f"{AT}.0.{name}", fp32)
    assert_matches(out.prefix_ND, f"f64.{AT}.0.prefix", ORACLE_ACTIVATIONS[dtype])
    assert torch.equal(out.bank[0], embedded("prompt", dtype))


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("number", [1, 3])
@torch.no_grad()
def test_sparse_layer_from_the_stream_before_it(number: int, dtype: torch.dtype) -> None:
    stream = Stream(prefix_ND=prefix(number - 1, dtype)[:NUM_ROUTED], bank=(embedded("prompt", dtype)[:NUM_ROUTED],))
    seen = Recorder()
    out = build_layer(number, dtype)(stream, segments(NUM_ROUTED), None, seen)
    ids = part()[f"{AT}.{number}.router_ids"][:NUM_ROUTED]
    assert seen[Site(number, Point.TOP_K_IDS)].tolist() == ids.tolist()
    weights = seen[Site(number, Point.GATE_WEIGHTS)]
    assert_matches(weights, f"f64.{AT}.{number}.router_weights", ORACLE_ROUTER_WEIGHTS[dtype])
    assert_matches(weights, f"{AT}.{number}.router_weights", ORACLE_ROUTER_WEIGHTS[torch.float32])
    for point, name in ((Point.MLP_IN, "mlp_in_mixed"), (Point.MLP_OUT, "mlp_out")):
        assert_matches(seen[Site(number, point)], f"{AT}.{number}.{name}", ORACLE_ACTIVATIONS[torch.float32])
    assert_matches(out.prefix_ND, f"f64.{AT}.{number}.prefix", ORACLE_ACTIVATIONS[dtype])


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("number", [0, 1, 3])
@torch.no_grad()
def test_attention_of_the_whole_prompt(number: int, dtype: torch.dtype) -> None:
    layer = build_layer(number, dtype)
    mixed = part()[f"{AT}.{number}.attn_in_mixed"].to(dtype)
    out = layer.self_attn(layer.input_layernorm(mixed), segments(17), None, untapped)
    assert_matches(out, f"{AT}.{number}.attn_out", ORACLE_ACTIVATIONS[torch.float32])


@pytest.mark.parametrize("number", [1, 3])
@torch.no_grad()
def test_router_of_the_whole_prompt(number: int) -> None:
    # The experts of later tokens are not committed, the router is.
    layer = build_layer(number, torch.float32)
    x = layer.post_attention_layernorm(mixture(number, "mlp_res", [embedded("prompt", torch.float32)], behind(number)))
    routing = layer.block_sparse_moe.route(x, untapped)
    assert routing.ids_NK.tolist() == part()[f"{AT}.{number}.router_ids"].tolist()
    assert_matches(routing.weights_NK, f"f64.{AT}.{number}.router_weights", ORACLE_ROUTER_WEIGHTS[torch.float32])


def behind(number: int) -> Tensor:
    """Returns the prefix between the attention and the MLP of a layer that opens no block."""
    return prefix(number - 1, torch.float32) + part()[f"{AT}.{number}.attn_out"]


def mixture(number: int | None, which: str, bank: list[Tensor], last: Tensor) -> Tensor:
    """Returns a mixture by the committed norm and pseudo-query of a layer, or of the output when the number is None."""
    at = ROOT if number is None else f"{ROOT}layers.{number}."
    norm, query = NormWeight(config().hidden_size), PseudoQuery(config().hidden_size)
    norm.load_state_dict({"weight": part()[f"{at}{which}_norm.weight"]})
    query.load_state_dict({"weight": part()[f"{at}{which}_proj.weight"]})
    return mix_sources(bank, last, norm.to(last.dtype), query.to(last.dtype), config().rms_norm_eps)


@pytest.mark.parametrize("number", [4, 8])
@torch.no_grad()
def test_mixtures_of_layers_that_open_a_block(number: int) -> None:
    # Pushes at 0, 4 and 8: the attention reads the finished block as prefix, the MLP reads it from the bank.
    sums = [embedded("prompt", torch.float64), prefix(3, torch.float64), prefix(7, torch.float64)]
    bank, finished = sums[: number // 4], sums[number // 4]
    tolerance = ORACLE_ACTIVATIONS[torch.float32]
    assert_matches(mixture(number, "self_attention_res", bank, finished), f"{AT}.{number}.attn_in_mixed", tolerance)
    attended = part()[f"{AT}.{number}.attn_out"].double()
    mixed = mixture(number, "mlp_res", [*bank, finished], attended)
    assert_matches(mixed, f"{AT}.{number}.mlp_in_mixed", tolerance)


@pytest.mark.parametrize("dtype", WIDTHS)
@torch.no_grad()
def test_tail_from_the_last_stream_to_the_logits(dtype: torch.dtype) -> None:
    bank = [embedded("prompt", dtype), prefix(3, dtype), prefix(7, dtype)]
    fp32 = ORACLE_ACTIVATIONS[torch.float32]
    assert_matches(torch.stack(bank), "len17.final.bank", fp32)
    mixed = mixture(None, "output_attn_res", bank, prefix(8, dtype))
    assert_matches(mixed, "len17.final.attn_res_out", fp32)
    norm = RMSNorm(config().hidden_size, config().rms_norm_eps)
    norm.load_state_dict({"weight": part()[f"{ROOT}norm.weight"]})
    normed = norm(mixed)
    assert_matches(normed, "len17.final.normed", fp32)
    assert part()["head"].shape[0] == NUM_LOGITS
    assert_matches(normed @ part()["head"].to(dtype).T, "f64.head_logits", ORACLE_ACTIVATIONS[dtype])


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("split", [(40,), (39, 1), (17, 1, 22), (1, 1, 38)])
@torch.no_grad()
def test_memory_of_the_first_layer_after_the_prefill(split: tuple[int, ...], dtype: torch.dtype) -> None:
    layer, memory = build_layer(0, dtype), Cache()
    assert isinstance(layer.self_attn, KimiDeltaAttention)
    for piece in embedded("prefill", dtype).split(list(split)):
        layer(Stream(prefix_ND=piece, bank=()), segments(len(piece)), memory, untapped)
    held, at = memory.kda[0], "decode.after_prefill.layer.0"
    assert_matches(held.state_BHKV[0], f"{at}.kda_state_kv", ORACLE_STATE[dtype])
    for window, stream in zip(held.window_BCW[0].chunk(3), "qkv", strict=True):
        assert_matches(window, f"{at}.conv_{stream}", ORACLE_STATE[dtype])
