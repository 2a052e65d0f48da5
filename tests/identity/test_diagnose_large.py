"""A large layer is searched by a few rows and passes: what is named is what a full search names, and noise is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.identity import diagnose, diagnose_large
from quantaudit.identity.diagnose import Diagnosed
from quantaudit.identity.layer_pair import Pair
from quantaudit.identity.mismatches import scoring
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.identity.mismatches.registry import search_mismatches
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, quantize

SCHEMES = [get_scheme(name) for name in ("mxfp4-floor", "mxfp4-even", "nvfp4")]
EVEN = SCHEMES[1]
MASTER = torch.randn(256, 256, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches as in a layer of millions of values."""
    monkeypatch.setattr(diagnose, "LARGE", 1)
    monkeypatch.setattr(diagnose_large, "_DRAWN", 1 << 12)


def named(served: Tensor, schemes: list[object] | None = None) -> Diagnosed | None:
    return diagnose.diagnose({Projection.WHOLE: Pair(master=MASTER, served=served)}, schemes or SCHEMES)  # type: ignore[arg-type]


def nibbles(x: Tensor) -> Tensor:
    stored = quantize(x, EVEN)
    return dequantize(replace(stored, codes=stored.codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)))


def scales(x: Tensor) -> Tensor:
    stored = quantize(x, EVEN)
    return dequantize(replace(stored, scales=stored.scales.t().reshape(stored.scales.shape)))


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "rows": (nibbles, "nibble-order"),
    "across rows": (scales, "transposed-scales"),
    "turned": (lambda x: fake_quantize(x, EVEN).t().contiguous(), "transposed-weights"),
    "in blocks": (lambda x: fake_quantize(fake_quantize(x, get_scheme("fp8-block128")), EVEN), "quantized-twice"),
    "second level": (lambda x: fake_quantize(x.bfloat16().float(), get_scheme("nvfp4")), "source-dtype"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_counted_on_every_value(fault: str) -> None:
    change, right = FAULTS[fault]
    served = change(MASTER)
    found = named(served)
    assert found is not None and found.num_left == 0 and found.num_values == MASTER.numel()
    assert (found.found.mismatch, found.found.explains) == (right, 1.0)
    assert found.scheme == (SCHEMES[2] if fault == "second level" else EVEN)


def test_a_fault_of_the_last_expert_is_found_by_the_rows_that_differ() -> None:
    stack = MASTER.view(4, 64, 256)
    served = fake_quantize(stack, EVEN)
    served[3] = nibbles(stack[3])
    found = diagnose.diagnose({Projection.DOWN: Pair(master=stack, served=served)}, SCHEMES)
    assert found is not None and found.num_left == 0 and found.found.mismatch == "nibble-order"
    assert found.experts[Projection.DOWN] == (3,)


@pytest.mark.parametrize("expert", [0, 5])
def test_blocks_are_cut_from_the_experts_that_differ(expert: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_large, "_BAND", 1)  # a single expert
    stack = torch.randn(6, 128, 256, generator=torch.Generator().manual_seed(4))
    stack[:, 64] *= 4096  # so that other rows alone are quantized otherwise
    served = fake_quantize(stack, EVEN)
    served[expert] = fake_quantize(fake_quantize(stack[expert], get_scheme("fp8-block128")), EVEN)
    found = diagnose.diagnose({Projection.DOWN: Pair(master=stack, served=served)}, SCHEMES[:2])
    assert found is not None and found.num_left == 0 and found.found.mismatch == "quantized-twice"
    assert found.experts[Projection.DOWN] == (expert,)


def test_a_fault_that_explains_under_half_is_named_with_its_share() -> None:
    stack = MASTER.view(4, 64, 256)
    stored = quantize(stack, EVEN)
    noise = torch.randint(0, 16, stored.codes.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    served = dequantize(replace(stored, codes=noise))
    served[2] = nibbles(stack[2])
    found = diagnose.diagnose({Projection.DOWN: Pair(master=stack, served=served)}, SCHEMES)
    full = search_mismatches({Projection.DOWN: quantize_weight(stack, EVEN)}, {Projection.DOWN: Weight(values=served)})[
        0
    ]
    assert found is not None and found.found.mismatch == full.about.name == "nibble-order"
    assert 0.2 < found.found.explains == full.explains < 0.3 and 2 in found.experts[Projection.DOWN]


def test_noise_is_not_explained_by_a_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0
    count = scoring.count_differing

    def counted(a: Tensor, b: Tensor, *, slack: float = 0.0) -> Tensor:
        nonlocal passes
        passes += b.numel() == MASTER.numel()
        return count(a, b, slack=slack)

    monkeypatch.setattr(scoring, "count_differing", counted)
    stored = quantize(MASTER, EVEN)
    noise = torch.randint(0, 16, stored.codes.shape, dtype=torch.uint8)
    codes = torch.where(torch.rand(stored.codes.shape) < 0.3, noise, stored.codes)
    assert named(dequantize(replace(stored, codes=codes))) is None
    # Of each of two schemes: what differs, once in all and once for every mismatch across rows, and its predictions.
    assert passes <= 2 * (1 + 2 * len(diagnose_large._ACROSS_ROWS) + 2)


def test_a_lead_that_a_sample_shows_by_chance_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(layer: Layer) -> Layer | None:
        return layer

    monkeypatch.setattr(
        diagnose_large,
        "search_mismatches",
        lambda train, serve: tuple(replace(one, predict=nothing) for one in search_mismatches(train, serve)),
    )
    monkeypatch.setattr(diagnose_large, "_ask", lambda name, train, serve: None)
    monkeypatch.setattr(diagnose_large, "_search_in_full", lambda *_: None)
    assert named(nibbles(MASTER)) is None
