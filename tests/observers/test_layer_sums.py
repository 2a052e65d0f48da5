"""Sums over batches give what a loop over all tokens gives, whatever the cut into batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.core.engine import Trace
from quantaudit.core.site import Point, Site
from quantaudit.observers.sums import LayerSums, hidden_error, load_drift, load_variation, set_agreement, slope

EXPERTS, TOKENS, K, WIDTH = 7, 60, 3, 5
CUTS = [(TOKENS,), (1, 20, 39), (30, 30)]
# A sum of squares over 300 values in fp64, two cuts of it, a division and a root.
FP64 = 2 * (TOKENS * WIDTH + 4) * 2.0**-53


def draw(seed: int) -> dict[Site, Tensor]:
    """Returns expert ids of layers 1 and 2 and hidden states of layers 0 to 2."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(EXPERTS, generator=generator)
    sites: dict[Site, Tensor] = {}
    for layer in (1, 2):
        chosen = torch.multinomial(weights.expand(TOKENS, -1), K, generator=generator).sort(-1).values
        sites[Site(layer, Point.TOP_K_IDS)] = chosen
    for layer in (0, 1, 2):
        sites[Site(layer, Point.HIDDEN)] = torch.randn(TOKENS, WIDTH, generator=generator)
    return sites


def cut(sites: dict[Site, Tensor], sizes: tuple[int, ...]) -> list[Trace]:
    """Returns traces of consecutive tokens."""
    pieces = {site: value.split(list(sizes)) for site, value in sites.items()}
    empty = torch.empty(0)
    return [
        Trace(logits_MV=empty, target_M=empty, counts_B=(), lengths_B=(), sites={s: p[i] for s, p in pieces.items()})
        for i in range(len(sizes))
    ]


def add_up(hi: dict[Site, Tensor], lo: dict[Site, Tensor], sizes: tuple[int, ...]) -> LayerSums:
    """Returns the sums over the pieces."""
    sums = LayerSums(num_experts=EXPERTS)
    for a, b in zip(cut(hi, sizes), cut(lo, sizes), strict=True):
        sums.add(a, b)
    return sums


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_routing_sums_are_those_of_a_loop(sizes: tuple[int, ...]) -> None:
    hi, lo = draw(1), draw(2)
    sums = add_up(hi, lo, sizes)
    assert sorted(sums.routing) == [1, 2]
    for layer in (1, 2):
        pairs = [
            (set(a), set(b)) for a, b in zip(*(s[Site(layer, Point.TOP_K_IDS)].tolist() for s in (hi, lo)), strict=True)
        ]
        found = sums.routing[layer]
        assert found.shared == sum(len(a & b) for a, b in pairs)
        assert found.chosen == TOKENS * K
        assert found.same_set == sum(a == b for a, b in pairs)
        assert found.tokens == TOKENS
        assert found.hi_load_E.tolist() == [sum(e in a for a, _ in pairs) for e in range(EXPERTS)]
        assert found.lo_load_E.tolist() == [sum(e in b for _, b in pairs) for e in range(EXPERTS)]
        assert found.kept_E.tolist() == [sum(e in a & b for a, b in pairs) for e in range(EXPERTS)]
        assert set_agreement(sums.routing)[layer] == found.shared / (TOKENS * K)
        drift = math.fsum(abs(int(a) - int(b)) for a, b in zip(found.hi_load_E, found.lo_load_E, strict=True)) / (
            2 * TOKENS * K
        )
        assert load_drift(sums.routing)[layer] == pytest.approx(drift, rel=FP64)
        assert 0 < drift < 1


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_hidden_error_is_relative_to_hi(sizes: tuple[int, ...]) -> None:
    hi, lo = draw(1), draw(2)
    errors = hidden_error(add_up(hi, lo, sizes).hidden)
    for layer in (0, 1, 2):
        a, b = (s[Site(layer, Point.HIDDEN)].double() for s in (hi, lo))
        assert errors[layer] == pytest.approx(float((a - b).norm() / a.norm()), rel=FP64)


def test_equal_models_show_nothing() -> None:
    sums = add_up(draw(1), draw(1), (TOKENS,))
    assert set(set_agreement(sums.routing).values()) == {1.0}
    assert set(load_drift(sums.routing).values()) == {0.0}
    assert set(hidden_error(sums.hidden).values()) == {0.0}
    assert all(s.same_set == s.tokens for s in sums.routing.values())


def test_loads_can_agree_where_no_token_does() -> None:
    ids = torch.tensor([[0, 1], [2, 3]])
    site = Site(1, Point.TOP_K_IDS)
    sums = LayerSums(num_experts=4)
    for a, b in zip(cut({site: ids}, (2,)), cut({site: ids.flip(0)}, (2,)), strict=True):
        sums.add(a, b)
    assert (set_agreement(sums.routing), load_drift(sums.routing)) == ({1: 0.0}, {1: 0.0})
    assert sums.routing[1].same_set == 0


def test_load_varies_by_its_standard_deviation_over_its_mean() -> None:
    assert load_variation(np.array([3, 3, 3, 3])) == 0.0
    assert load_variation(np.array([0, 0, 0, 8])) == pytest.approx(math.sqrt(3), rel=2.0**-50)
    assert load_variation(np.array([0, 0])) == 0.0


def test_the_slope_is_that_of_a_line_and_needs_two_finite_points() -> None:
    assert slope([1, 2, 5], [10.0, 8.0, 2.0]) == -2.0
    assert slope([1, 2, 5, 7], [10.0, 8.0, 2.0, math.inf]) == -2.0
    assert slope([0, 1, 2], [0.0, 1.0, 0.0]) == 0.0
    assert slope([1], [3.0]) is None and slope([1, 2], [3.0, math.nan]) is None
