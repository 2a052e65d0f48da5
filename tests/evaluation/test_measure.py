"""The paired pass: hi against itself is the floor, and a lo path that changes hi is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quantaudit.core.decision import Outcome
from quantaudit.core.verdict import Admission
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, pass_through
from quantaudit.evaluation.controls import identity_control
from quantaudit.evaluation.faults import FAULTS
from quantaudit.evaluation.measure import Engines, Measurements, forward_in_pieces, measure
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.sums import POINTS
from tests.engines.small import CPU, SMALL, WIDEST, experts_in, open_small
from tests.evaluation.subjects import PER_FAMILY, audit, world_probes
from tests.tolerances import whole_stack

ASSAYED = {"nll", "accuracy", "answer-margin", "refusal-margin", "expert-set-agreement"}


@pytest.fixture(scope="module")
def hi(audited: Path) -> Realization:
    return open_small(audited / "plain")


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    planned = plan_batches(world_probes(), 40)
    return [planned[0], next(b for b in planned[1:] if max(b.opposite_P) >= 0)]


def run(hi: Realization, lo: Realization, identity: Realization, batches: list[Batch]) -> Measurements:
    """Runs the pass over some batches."""
    engines = Engines(hi=NativeEngine(hi, CPU), lo=NativeEngine(lo, CPU), identity=NativeEngine(identity, CPU))
    return measure(engines, batches, num_experts=SMALL.num_experts, assayed=ASSAYED, advance=lambda count: None)


@pytest.fixture(scope="module")
def measured(hi: Realization, batches: list[Batch]) -> Measurements:
    return run(hi, apply_recipe(hi, experts_in("int2-g32")), pass_through(hi), batches)


def test_every_observer_reads_every_probe_it_applies_to(measured: Measurements, batches: list[Batch]) -> None:
    positions = sorted(i for batch in batches for i in batch.index_P)
    safety = sorted(i for b in batches for i, p in zip(b.index_P, b.probes, strict=True) if p.alternative is not None)
    assert len(positions) == 80 and 0 < len(safety) < 80
    for table in (measured.lo, measured.floor):
        assert set(table.parts) == set(PROBE_OBSERVERS)
        for name in PROBE_OBSERVERS:
            expected = safety if name.startswith("refusal") else positions
            assert table.readings(name).index_R.tolist() == expected


def test_lo_is_read_on_the_side_of_lo(measured: Measurements) -> None:
    kl, margin = measured.lo.readings("kl-forward"), measured.lo.readings("answer-margin")
    assert (kl.lo_R > 0).all() and (margin.hi_R != margin.lo_R).any()
    assert np.array_equal(margin.hi_R, measured.floor.readings("answer-margin").hi_R)


def test_layers_are_summed_with_hi_as_the_reference(measured: Measurements) -> None:
    for layer in SMALL.moe_layers():
        lo, floor = measured.sums.routing[layer], measured.floor_sums.routing[layer]
        assert np.array_equal(lo.hi_load_E, floor.hi_load_E) and np.array_equal(floor.lo_load_E, floor.hi_load_E)
    assert any(not np.array_equal(s.hi_load_E, s.lo_load_E) for s in measured.sums.routing.values())


def test_the_floor_is_rounding(measured: Measurements, hi: Realization, batches: list[Batch]) -> None:
    floor = measured.floor
    scale = float(NativeEngine(hi, CPU).forward(batches[0].sequences).logits_MV.abs().max())
    margin = floor.readings("answer-margin")
    assert np.abs(margin.hi_R - margin.lo_R).max() <= 2 * whole_stack(
        torch.float32, layers=4, width=WIDEST, scale=scale
    )
    assert np.array_equal(floor.readings("accuracy").hi_R, floor.readings("accuracy").lo_R)
    assert set(measured.floor_sums.hidden) == set(measured.sums.hidden) == set(range(4))
    worst_floor = max(s.error for s in measured.floor_sums.hidden.values())
    assert worst_floor < 1e-6 * min(s.error for layer, s in measured.sums.hidden.items() if layer > 0)


def test_pieces_are_the_whole(hi: Realization, batches: list[Batch]) -> None:
    engine = NativeEngine(hi, CPU)
    whole, pieces = engine.forward(batches[0].sequences, observe=POINTS), forward_in_pieces(engine, batches[0])
    assert (pieces.counts_B, pieces.lengths_B) == (whole.counts_B, whole.lengths_B)
    assert torch.equal(pieces.target_M, whole.target_M)
    assert pieces.sites.keys() == whole.sites.keys()
    assert all(pieces.sites[site].shape == value.shape for site, value in whole.sites.items())


def test_faults_are_planted_in_hi_not_in_lo(measured: Measurements) -> None:
    assert set(measured.faults) == set(FAULTS)
    for table in measured.faults.values():
        assert np.array_equal(table.readings("nll").hi_R, measured.floor.readings("nll").hi_R)
        assert not table.is_zero()
        assert set(table.parts) == ASSAYED


def test_tokens_are_counted_without_opposite_responses(measured: Measurements, batches: list[Batch]) -> None:
    expected = sum(s.num_scored for b in batches for s in b.sequences[: len(b.probes)])
    assert measured.num_scored_tokens == expected


def test_the_identity_control_passes_and_sees_a_lo_path_that_is_not_hi(
    hi: Realization, batches: list[Batch], measured: Measurements
) -> None:
    assert measured.identity.is_zero() and measured.identity_probes == 40
    assert identity_control(measured).outcome is Outcome.PASS
    broken = pass_through(hi)
    module = broken.model.get_submodule("model.layers.3.block_sparse_moe.experts.w2")
    module.stored = module.stored + 2.0**-6  # type: ignore[operator, assignment]
    assert identity_control(run(hi, hi, broken, batches[:1])).outcome is Outcome.FAIL


def test_an_audit_whose_lo_path_is_broken_is_inconclusive(audited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(hi: Realization) -> Realization:
        lo = pass_through(hi)
        module = lo.model.get_submodule("model.layers.2.block_sparse_moe.experts.w1")
        module.stored = module.stored * 1.125  # type: ignore[operator, assignment]
        return lo

    monkeypatch.setattr("quantaudit.composition.pass_through", leaky)
    report = audit(audited / "plain", recipe=experts_in("int2-g32"))
    assert report.verdict.admission is Admission.INCONCLUSIVE
    assert report.verdict.deciding[0] == "identity" and "identity control failed" in report.verdict.sentence
    assert report.probes.num_probes == 10 * PER_FAMILY
