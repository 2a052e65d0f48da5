"""Forced routing blames the router for what the router did, the experts for what they did, and nobody for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quantaudit.core.diagnostic import Topic
from quantaudit.core.site import Point
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, pass_through, share_parameters
from quantaudit.evaluation.forced_routing import RoutingSplit, diagnose_forced_routing, force
from quantaudit.evaluation.measure import Engines, measure, pair_up
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table
from quantaudit.observers.metric import METRICS
from quantaudit.observers.scores import score_sequences
from quantaudit.observers.sums import POINTS
from quantaudit.stats import estimate_mean, gather
from tests.engines.small import CPU, SMALL, WIDEST, experts_in, open_small
from tests.evaluation.subjects import world_probes
from tests.tolerances import whole_stack

STEPS = ("weights", "gates", "selection")
NAMES = ("nll", "accuracy", "answer-margin")
LAST_MOE = SMALL.moe_layers()[-1]


@pytest.fixture(scope="module")
def hi(audited: Path) -> Realization:
    return open_small(audited / "plain")


@pytest.fixture(scope="module")
def batch() -> Batch:
    return next(b for b in plan_batches(world_probes(), 40) if max(b.opposite_P) >= 0)


def changed(hi: Realization, change: Callable[[str, Tensor], Tensor]) -> Realization:
    """Returns hi with other parameters wherever `change` gives them."""
    model = share_parameters(hi.model)
    for path, parameter in list(model.named_parameters()):
        value = change(path, parameter.detach().clone())
        if not torch.equal(value, parameter):
            owner, _, name = path.rpartition(".")
            setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))
    return replace(hi, model=model)


def noise_at(
    ending: str, scale: float, *, layers: tuple[int, ...] = SMALL.moe_layers()
) -> Callable[[str, Tensor], Tensor]:
    """Returns a change that adds noise to some parameters of some layers."""
    generator = torch.Generator().manual_seed(3)

    def change(path: str, value: Tensor) -> Tensor:
        if not path.endswith(ending) or int(path.split(".")[2]) not in layers:
            return value
        return value + (scale * torch.randn(value.shape, generator=generator)).to(value.dtype)

    return change


def split(hi: Realization, lo: Realization, batch: Batch) -> tuple[RoutingSplit, float]:
    """Returns the split of one batch, and the share of tokens and layers whose experts differ."""
    one, two = NativeEngine(hi, CPU), NativeEngine(lo, CPU)
    first, second = (engine.forward(batch.sequences, observe=POINTS) for engine in (one, two))
    found = RoutingSplit()
    found.add(two, batch, pair_up(batch, first, second, score_sequences(first)))
    flips = [
        (first.sites[site] != second.sites[site]).any(-1).double().mean()
        for site in first.sites
        if site.point is Point.TOP_K_IDS
    ]
    return found, float(torch.stack(flips).mean())


def same_readings(first: Table, second: Table) -> bool:
    """Tells whether two tables hold the same differences, to the bit."""
    return all(
        np.array_equal(first.readings(n).hi_R, second.readings(n).hi_R)
        and np.array_equal(first.readings(n).lo_R, second.readings(n).lo_R)
        for n in NAMES
    )


def test_a_damaged_router_is_all_routing(hi: Realization, batch: Batch) -> None:
    found, flips = split(hi, changed(hi, noise_at("gate.weight", 1.0)), batch)
    assert flips > 0.2 and not found.tables["total"].is_zero()
    assert found.tables["weights"].is_zero()
    assert not found.tables["gates"].is_zero() and not found.tables["selection"].is_zero()


def test_a_damaged_correction_bias_is_all_selection(hi: Realization, batch: Batch) -> None:
    found, flips = split(hi, changed(hi, noise_at("e_score_correction_bias", 1.0)), batch)
    assert flips > 0.2 and not found.tables["total"].is_zero()
    assert found.tables["weights"].is_zero() and found.tables["gates"].is_zero()
    assert same_readings(found.tables["selection"], found.tables["total"])


def test_damaged_experts_behind_the_last_router_are_all_weights(hi: Realization, batch: Batch) -> None:
    found, flips = split(hi, changed(hi, noise_at("experts.w2.weight", 0.5, layers=(LAST_MOE,))), batch)
    assert flips == 0 and not found.tables["total"].is_zero()
    assert found.tables["gates"].is_zero() and found.tables["selection"].is_zero()
    assert same_readings(found.tables["weights"], found.tables["total"])


def test_damaged_experts_on_frozen_routes_select_nothing(hi: Realization, batch: Batch) -> None:
    def frozen(path: str, value: Tensor) -> Tensor:
        return 100.0 * torch.arange(len(value)) if path.endswith("e_score_correction_bias") else value

    one = changed(hi, frozen)
    found, flips = split(one, changed(one, noise_at("experts.w1.weight", 0.5)), batch)
    assert flips == 0 and found.tables["selection"].is_zero()
    assert not found.tables["weights"].is_zero() and not found.tables["gates"].is_zero()


def test_copies_of_one_expert_flip_without_effect(hi: Realization, batch: Batch) -> None:
    def upcycled(path: str, value: Tensor) -> Tensor:
        return value[:1].expand_as(value).clone() if ".experts." in path else value

    one = changed(hi, upcycled)
    found, flips = split(one, changed(one, noise_at("gate.weight", 0.5)), batch)
    assert flips > 0.2
    # Gate weights that sum to one times one output: equal but for rounding. A margin is a difference of two logits and
    # an NLL a mean of such; both sides of each are computed in another order.
    logits = NativeEngine(one, CPU).forward(batch.sequences).logits_MV
    tolerance = 4 * whole_stack(torch.float32, layers=4, width=WIDEST, scale=float(logits.abs().max()))
    for table in found.tables.values():
        for name in ("nll", "answer-margin"):
            assert np.abs(damage_of(table.readings(name), larger_is_better=False)).max() <= tolerance
        assert np.array_equal(table.readings("accuracy").hi_R, table.readings("accuracy").lo_R)


def test_steps_add_up_to_the_whole(hi: Realization, batch: Batch) -> None:
    found, _ = split(hi, apply_recipe(hi, experts_in("int2-g32")), batch)
    for name in NAMES:
        total, *parts = (
            damage_of(found.tables[step].readings(name), larger_is_better=True) for step in ("total", *STEPS)
        )
        # Three differences of float64 numbers of about the size of the largest, each rounded once, and two sums.
        scale = max(np.abs(found.tables["total"].readings(name).hi_R).max(), np.abs(total).max(), 1.0)
        assert np.abs(sum(parts) - total).max() <= 8 * 2.0**-53 * scale
        assert all(np.any(part != 0) for part in parts) or name == "accuracy"


def test_forced_runs_are_those_of_a_loop_over_single_sequences(hi: Realization, batch: Batch) -> None:
    lo = apply_recipe(hi, experts_in("int2-g32"))
    found, _ = split(hi, lo, batch)
    one, two = NativeEngine(hi, CPU), NativeEngine(lo, CPU)
    forced = found.tables["gates"].readings("nll")  # from hi's routes and gates to hi's routes
    at = {position: row for row, position in enumerate(forced.index_R.tolist())}
    for place, sequence in list(zip(batch.index_P, batch.sequences, strict=False))[:6]:
        seen = one.forward([sequence], observe=POINTS)
        for points, column in (
            ((Point.TOP_K_IDS, Point.GATE_WEIGHTS), forced.hi_R),
            ((Point.TOP_K_IDS,), forced.lo_R),
        ):
            trace = two.forward([sequence], intervene=force(seen, *points))
            rows = trace.logits_MV.double()
            losses = [float(r.logsumexp(-1) - r[t]) for r, t in zip(rows, trace.target_M, strict=True)]
            tolerance = 2 * whole_stack(torch.float32, layers=4, width=WIDEST, scale=float(rows.abs().max()))
            assert abs(column[at[place]] - sum(losses) / len(losses)) <= tolerance


def test_what_is_shown_is_the_mean_damage_with_its_clustered_interval(hi: Realization, batch: Batch) -> None:
    found, _ = split(hi, apply_recipe(hi, experts_in("int2-g32")), batch)
    floor = found.tables["gates"]  # any table will do
    shown = {d.name: d for d in diagnose_forced_routing(found, world_probes(), floor).diagnostics}
    assert len(shown) == 12 and {d.topic for d in shown.values()} == {Topic.ROUTING}
    for name in NAMES:
        for step in ("total", *STEPS):
            row, readings = shown[f"forced-routing-{name}-{step}"], found.tables[step].readings(name)
            damage = damage_of(readings, larger_is_better=METRICS[name].larger_is_better)
            assert row.value is not None and row.value == pytest.approx(damage.mean(), rel=1e-12, abs=1e-15)
            assert row.num_items == len(batch.probes) and (row.floor is None) is (step != "total")
            assert row.interval is not None and row.interval.lower <= row.value <= row.interval.upper
            if name != "accuracy":
                sample = gather(damage, clusters_at(world_probes(), readings.index_R))
                assert row.interval == estimate_mean(sample).interval
    nll = floor.readings("nll")
    assert shown["forced-routing-nll-total"].floor == pytest.approx((nll.lo_R - nll.hi_R).mean(), rel=1e-12)


def test_what_overflowed_is_said_and_nothing_is_shown_without_a_run(hi: Realization, batch: Batch) -> None:
    found, _ = split(hi, apply_recipe(hi, experts_in("int2-g32")), batch)
    found.tables["selection"].parts["nll"][0].lo_R[0] = np.inf
    row = next(
        d
        for d in diagnose_forced_routing(found, world_probes(), found.tables["gates"]).diagnostics
        if d.name == "forced-routing-nll-selection"
    )
    assert row.value is None and row.interval is None and "Not finite" in row.note
    assert diagnose_forced_routing(RoutingSplit(), world_probes(), Table()) == ((), ())


def test_a_share_of_the_batches_is_forced(hi: Realization, batch: Batch) -> None:
    assert [n for n in range(30) if RoutingSplit().wants(n)] == [0, 8, 16, 24]
    assert not RoutingSplit(num_probes=1000).wants(0)
    engines = Engines(hi=NativeEngine(hi, CPU), lo=NativeEngine(hi, CPU), identity=NativeEngine(pass_through(hi), CPU))
    measured = measure(engines, [batch, batch], num_experts=8, assayed=(), advance=lambda count: None)
    assert measured.forced.num_probes == len(batch.probes)
    assert all(table.is_zero() for table in measured.forced.tables.values())


def test_routes_that_were_not_observed_cannot_be_forced(hi: Realization, batch: Batch) -> None:
    trace = NativeEngine(hi, CPU).forward(batch.sequences[:1], observe=frozenset({Point.TOP_K_IDS}))
    with pytest.raises(AssertionError, match="did not observe"):
        force(trace, Point.TOP_K_IDS, Point.GATE_WEIGHTS)
