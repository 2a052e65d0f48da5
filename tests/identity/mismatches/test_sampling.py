"""Trying predictions on the first rows changes what is spent, not what is found."""

from __future__ import annotations

import pytest
import torch

from quantaudit.identity.mismatches import sampling
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.identity.mismatches.registry import search_mismatches
from quantaudit.identity.mismatches.scoring import num_differing
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.numerics import get_scheme
from tests.identity.mismatches.planted import PLANTS

BY_ROWS = ["mxfp4-even", "int4-g32-div7.5", "fp8-block128", "int8-channel"]


def tall(scheme: str) -> Layer:
    """Returns two experts of 256 rows, with two earlier masters."""
    masters = [torch.randn(2, 256, 96)]
    for _ in range(2):
        masters.append(masters[-1] + 0.1 * torch.randn(2, 256, 96))
    return {Projection.WHOLE: quantize_weight(masters[0], get_scheme(scheme), earlier=tuple(masters[1:]))}


@pytest.mark.parametrize("scheme", BY_ROWS)
def test_the_first_rows_are_quantized_as_inside_the_whole(scheme: str) -> None:
    train = tall(scheme)
    assert sampling.quantizes_by_rows(get_scheme(scheme))
    first = sampling._first_rows(train)[Projection.WHOLE]
    assert first.master is not None and first.quantized is not None
    again = quantize_weight(first.master, get_scheme(scheme))
    assert again.quantized is not None
    assert torch.equal(first.values, again.values) and torch.equal(first.quantized.scales, again.quantized.scales)


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8-tensor", "nf4-b64"])
def test_scales_of_the_whole_matrix_are_not_sampled(scheme: str) -> None:
    assert not sampling.quantizes_by_rows(get_scheme(scheme))


@pytest.mark.parametrize("plant", ["nibbles", "ratio", "bf16", "two updates", "one expert", "after fp8"])
def test_what_is_found_on_a_sample_is_what_is_found_in_full(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train = tall("mxfp4-even")
    right, change = PLANTS[plant]
    serve = change(train)
    assert serve is not None
    monkeypatch.setattr(sampling, "_WORTH_SAMPLING", 1)
    found = search_mismatches(train, serve)
    assert (found[0].about.name, found[0].explains) == (right, 1.0)
    assert found[0].num_differing == num_differing(train, serve)


def test_a_difference_beyond_the_sample_is_found_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_WORTH_SAMPLING", 1)
    old = torch.randn(2, 256, 96)
    new = old.clone()
    new[:, 200:] += 0.1  # the last update left the first rows alone
    scheme = get_scheme("mxfp4-even")
    train = {Projection.WHOLE: quantize_weight(new, scheme, earlier=(old,))}
    found = search_mismatches(train, {Projection.WHOLE: Weight(values=quantize_weight(old, scheme).values)})
    assert (found[0].about.name, found[0].explains) == ("stale", 1.0)
