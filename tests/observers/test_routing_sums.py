"""Flips, first flips, margins and gate drift on routings written by hand, and against a loop on random ones.

Three tokens, four experts, two chosen, layers 1 and 3:

    token    layer 1 hi, lo      layer 3 hi, lo
    0        01  01              01  01
    1        01  02              01  23
    2        23  23              12  02
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.core.engine import Trace
from quantaudit.core.site import Point, Site
from quantaudit.observers.routing_sums import (
    MARGIN_EDGES,
    RoutingLog,
    exact_set_rate,
    flips_by_margin,
    gate_drift,
    mean_drift,
    routing_margin,
)

HI = {1: [[0, 1], [0, 1], [2, 3]], 3: [[0, 1], [0, 1], [1, 2]]}
LO = {1: [[0, 1], [0, 2], [2, 3]], 3: [[0, 1], [2, 3], [0, 2]]}
EXPERTS = 4


def routed(ids: dict[int, list[list[int]]], *, margin: float = 0.2, weights: dict[int, Tensor] | None = None) -> Trace:
    """Returns a trace with these experts chosen by a score margin, and equal gate weights unless given."""
    sites: dict[Site, Tensor] = {}
    for layer, rows in ids.items():
        chosen = torch.tensor(rows)
        score = torch.full((len(rows), EXPERTS), 0.3, dtype=torch.float64).scatter(1, chosen, 0.3 + margin)
        sites[Site(layer, Point.TOP_K_IDS)] = chosen
        sites[Site(layer, Point.ROUTER_LOGITS)] = torch.logit(score)
        sites[Site(layer, Point.GATE_WEIGHTS)] = torch.ones(chosen.shape) if weights is None else weights[layer]
    empty = torch.empty(0)
    return Trace(logits_MV=empty, target_M=empty, counts_B=(), lengths_B=(), sites=sites)


def add_up(hi: Trace, lo: Trace) -> RoutingLog:
    """Returns the log of one forward."""
    log = RoutingLog()
    log.add(hi, lo)
    return log


def test_flips_and_first_flips_are_counted_by_layer() -> None:
    log = add_up(routed(HI), routed(LO))
    assert (log.tokens, log.flipped) == (3, 2)
    assert {layer: (s.flips, s.first_flips) for layer, s in log.layers.items()} == {1: (1, 1), 3: (2, 1)}
    assert exact_set_rate(log) == pytest.approx(1 - 3 / 6, rel=2.0**-52)


def test_batches_add_up() -> None:
    log = add_up(routed(HI), routed(LO))
    log.add(routed(LO), routed(LO))
    assert (log.tokens, log.flipped) == (6, 2)
    assert exact_set_rate(log) == 1 - 3 / 12


def test_equal_routings_show_nothing() -> None:
    log = add_up(routed(HI), routed(HI))
    assert (log.flipped, exact_set_rate(log), mean_drift(log)) == (0, 1.0, {1: 0.0, 3: 0.0})
    assert flips_by_margin(log).shares == (None,) * 7 + (0.0,)


def test_drift_is_2_for_disjoint_sets_and_1_for_half_of_them() -> None:
    drift = mean_drift(add_up(routed(HI), routed(LO)))
    assert drift == {1: pytest.approx(1 / 3, rel=2.0**-52), 3: pytest.approx((2 + 1) / 3, rel=2.0**-52)}


def test_weights_drift_without_a_flip_and_their_scale_is_none() -> None:
    ids = torch.tensor([[0, 3], [1, 2]])
    hi, lo = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([[2.0, 2.0], [8.0, 8.0]])
    assert gate_drift(ids, hi, ids, lo).tolist() == [0.5, 0.0]


def test_drift_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    hi, lo = (np.array([sorted(rng.choice(9, 4, replace=False)) for _ in range(50)]) for _ in range(2))
    hi_weight, lo_weight = rng.uniform(0.1, 1, (2, 50, 4))
    found = gate_drift(*(torch.from_numpy(x) for x in (hi, hi_weight, lo, lo_weight)))
    for n in range(50):
        a, b = (dict(zip(ids[n], w[n] / w[n].sum(), strict=True)) for ids, w in ((hi, hi_weight), (lo, lo_weight)))
        expected = math.fsum(abs(a.get(e, 0.0) - b.get(e, 0.0)) for e in a | b)
        assert float(found[n]) == pytest.approx(expected, rel=32 * 2.0**-53)


def test_the_margin_is_between_the_last_chosen_and_the_next() -> None:
    score = torch.tensor([[0.9, 0.5, 0.4, 0.1]], dtype=torch.float64)
    logits = torch.logit(score)
    margin = routing_margin(logits, torch.tensor([[0, 1]]), None)
    assert float(margin) == pytest.approx(0.1, abs=2.0**-50)
    # A bias that lifts expert 3 above all others: chosen are 0 and 3, the next is 1.
    bias = torch.tensor([0.0, 0.0, 0.0, 0.7])
    assert float(routing_margin(logits, torch.tensor([[0, 3]]), bias)) == pytest.approx(0.3, abs=2.0**-22)
    assert float(routing_margin(logits, torch.tensor([[0, 1, 2, 3]]), None)) == 1.0


def test_flips_are_binned_by_the_margin_of_hi() -> None:
    log = RoutingLog()
    for margin, lo in ((0.002, LO), (0.05, HI)):
        log.add(routed(HI, margin=margin), routed(lo, margin=0.6))
    found = flips_by_margin(log)
    near, wide = (sum(margin >= edge for edge in MARGIN_EDGES) for margin in (0.002, 0.05))
    assert found.counts == tuple(6 if i in (near, wide) else 0 for i in range(8))
    assert (found.shares[near], found.shares[wide]) == (0.5, 0.0)
    assert [s for i, s in enumerate(found.shares) if i not in (near, wide)] == [None] * 6


def test_the_bias_of_a_layer_is_used_in_that_layer() -> None:
    bias = torch.tensor([0.5, 0.5, 0.0, 0.0])
    log = RoutingLog(bias_by_layer={1: bias})
    log.add(routed({1: HI[1][:1], 3: HI[3][:1]}, margin=0.002), routed({1: HI[1][:1], 3: HI[3][:1]}))
    assert log.layers[1].tokens_in_bin.tolist() == [0] * 7 + [1]
    assert log.layers[3].tokens_in_bin.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_a_model_without_moe_layers_is_not_counted() -> None:
    log = add_up(routed({}), routed({}))
    assert (log.tokens, log.layers) == (0, {})
