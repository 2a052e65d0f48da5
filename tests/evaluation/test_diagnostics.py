"""What an audit shows beside its clauses: parts add up, hi is not different from itself, silent flips are called so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from quantaudit.composition import pair_weights
from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.site import Point
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, pass_through
from quantaudit.evaluation.answer_diagnostics import diagnose_answers
from quantaudit.evaluation.depth_diagnostics import diagnose_depth
from quantaudit.evaluation.details import Details
from quantaudit.evaluation.diagnostics import diagnose
from quantaudit.evaluation.measure import Engines, Measurements, measure
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.routing_diagnostics import NO_EFFECT, Effect, has_effect
from quantaudit.evaluation.selection_bias import note_biases
from quantaudit.evaluation.shown import Shown, cluster_interval, diagnostic
from quantaudit.evaluation.table import Table
from quantaudit.evaluation.token_diagnostics import diagnose_tokens
from quantaudit.observers.routing_sums import RoutingLog, routing_margin
from quantaudit.observers.sums import HiddenSums, LayerSums
from quantaudit.observers.token_sums import Tokens
from tests.engines.small import CPU, SMALL, experts_in, open_small, small_state, write_small
from tests.evaluation.subjects import world_probes
from tests.evaluation.synthetic import PROBES, at, good_values, table_of, weight_evidence

# Numbers that have no floor: they are about hi alone, or about weights, which are compared and not run.
WITHOUT_FLOOR = {"experts-never-reached", "tokens-per-expert", "weight-sqnr-slope", "answer-direction"}


def run(hi: Realization, lo: Realization, batches: list[Batch]) -> Measurements:
    """Runs the pass over some batches, with hi's biases known."""
    biases: dict[int, torch.Tensor] = {}
    list(note_biases(pair_weights(hi, hi, {}), into=biases))
    engines = Engines(hi=NativeEngine(hi, CPU), lo=NativeEngine(lo, CPU), identity=NativeEngine(pass_through(hi), CPU))
    return measure(
        engines,
        batches,
        num_experts=SMALL.num_experts,
        assayed=(),
        advance=lambda count: None,
        selection_bias=biases,
    )


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    planned = plan_batches(world_probes(), 30)
    return [planned[0], next(b for b in planned[1:] if max(b.opposite_P) >= 0)]


@pytest.fixture(scope="module")
def hi(audited: Path) -> Realization:
    return open_small(audited / "plain")


@pytest.fixture(scope="module")
def measured(hi: Realization, batches: list[Batch]) -> Measurements:
    return run(hi, apply_recipe(hi, experts_in("int2-g32")), batches)


@pytest.fixture(scope="module")
def shown(measured: Measurements) -> Shown:
    return diagnose(world_probes(), measured, weight_evidence())


def number(shown: Shown, name: str) -> Diagnostic:
    """Returns a diagnostic by name."""
    return next(d for d in shown.diagnostics if d.name == name)


def series(shown: Shown, name: str) -> Series:
    """Returns a series by name."""
    return next(s for s in shown.series if s.name == name)


def weighted(found: Series) -> float:
    """Returns the mean of a series over its items."""
    return math.fsum(v * n for v, n in zip(found.values, found.counts, strict=True) if v is not None) / sum(
        found.counts
    )


def tokens_of(details: Details) -> Tokens:
    """Returns the tokens of a comparison that has some."""
    tokens = details.tokens.join()
    assert tokens is not None
    return tokens


def test_names_are_unique_and_every_number_stands_beside_its_floor(shown: Shown) -> None:
    names = [d.name for d in shown.diagnostics] + [s.name for s in shown.series]
    assert len(set(names)) == len(names)
    assert {d.topic for d in shown.diagnostics} == set(Topic) - {Topic.GENERATION, Topic.SAFETY}
    assert {d.name for d in shown.diagnostics if d.floor is None} <= WITHOUT_FLOOR
    about_lo_alone = {"reliability", "load-variation-by-layer"}
    assert all(len(s.floor) == len(s.labels) for s in shown.series if s.name not in about_lo_alone)
    unknown = {d.name for d in shown.diagnostics if d.name not in WITHOUT_FLOOR and d.value is None}
    # A model that was never trained may have no right answer to rank above its wrong ones; then, and only then, the
    # area is unknown.
    auroc = number(shown, "delta-auroc")
    assert unknown == ({"delta-auroc"} if auroc.hi is None or auroc.lo is None else set())


def test_lo_is_far_above_the_floor(shown: Shown) -> None:
    for name in ("delta-p-rms", "kl-per-token", "js-per-token", "importance-k2-expected", "gate-weight-drift"):
        found = number(shown, name)
        assert found.value is not None and found.floor is not None
        assert found.value > 1e3 * abs(found.floor), name


def test_parts_add_up_to_the_whole(shown: Shown, measured: Measurements) -> None:
    kl = number(shown, "kl-per-token").value
    # Sums of a few hundred numbers in three orders.
    for name in ("kl-by-position", "kl-by-family"):
        assert weighted(series(shown, name)) == pytest.approx(kl, rel=1000 * 2.0**-53)
    assert weighted(series(shown, "agreement-by-lead")) == pytest.approx(number(shown, "same-top").value, rel=2.0**-44)
    same = 1 - weighted(series(shown, "flips-by-routing-margin"))
    assert same == pytest.approx(number(shown, "exact-set-rate").value, rel=2.0**-44)
    first = series(shown, "first-flip")
    assert sum(first.counts) == measured.details.routing.flipped
    assert sum(v or 0 for v in first.values) == pytest.approx(number(shown, "tokens-rerouted").value, rel=2.0**-48)


def test_means_over_tokens_are_means_over_probes_weighted_by_their_tokens(
    shown: Shown, measured: Measurements, batches: list[Batch]
) -> None:
    counts = {
        index: sequence.num_scored
        for b in batches
        for index, sequence in zip(b.index_P, b.sequences[: len(b.probes)], strict=True)
    }
    for observer, name in (("js", "js-per-token"), ("k3", "importance-k3-expected"), ("top-5-overlap", "top-5-shared")):
        readings = measured.lo.readings(observer)
        size = np.array([counts[int(i)] for i in readings.index_R])
        expected = float((readings.lo_R * size).sum() / size.sum())
        assert number(shown, name).value == pytest.approx(expected, rel=1000 * 2.0**-53)
    change = measured.lo.readings("delta-p")
    size = np.array([counts[int(i)] for i in change.index_R])
    expected = float(((change.lo_R - change.hi_R) * size).sum() / size.sum())
    assert number(shown, "delta-p-mean").value == pytest.approx(expected, abs=1000 * 2.0**-53)
    assert number(shown, "delta-p-mean").num_items == size.sum() == measured.num_scored_tokens


def test_intervals_hold_the_mean_and_are_taken_over_clusters(shown: Shown, measured: Measurements) -> None:
    for found in shown.diagnostics:
        if found.interval is not None:
            assert found.value is not None and found.interval.lower <= found.value <= found.interval.upper
    kl_M = tokens_of(measured.details).view.kl_M
    by_cluster = number(shown, "kl-per-token").interval
    alone = cluster_interval(kl_M, [str(i) for i in range(len(kl_M))])
    assert by_cluster is not None and alone is not None
    assert by_cluster.upper - by_cluster.lower > alone.upper - alone.lower


def test_a_model_differs_from_itself_by_exactly_nothing(hi: Realization, batches: list[Batch]) -> None:
    shown = diagnose(world_probes(), run(hi, hi, batches), weight_evidence())
    ones = {"same-top", "top-5-shared", "exact-set-rate", "importance-ess-expected", "importance-ess-realised"}
    about_hi = {"collision", "answer-mcnemar", "experts-never-reached", "tokens-per-expert", "weight-sqnr-slope"}
    for found in shown.diagnostics:
        if found.name in ones:
            assert found.value == 1.0, found.name
        elif found.name in ("answer-direction", "hidden-error-slope"):
            assert found.value is None, found.name
        elif found.name not in about_hi:
            assert found.value == 0.0, found.name
    collision = number(shown, "collision")
    assert collision.value == collision.hi == collision.lo
    assert number(shown, "answer-mcnemar").value == 1.0
    assert NO_EFFECT not in number(shown, "tokens-rerouted").note.lower()


def test_margins_are_those_the_router_chose_by(hi: Realization, batches: list[Batch]) -> None:
    biases: dict[int, torch.Tensor] = {}
    assert len(list(note_biases(pair_weights(hi, hi, {}), into=biases))) > len(biases)
    assert sorted(biases) == list(SMALL.moe_layers())
    trace = NativeEngine(hi, CPU).forward(
        batches[0].sequences, observe=frozenset({Point.ROUTER_LOGITS, Point.TOP_K_IDS})
    )
    without = []
    for site, ids_NK in trace.sites.items():
        if site.point is Point.TOP_K_IDS:
            logits_NE = trace.sites[site._replace(point=Point.ROUTER_LOGITS)]
            assert float(routing_margin(logits_NE, ids_NK, biases[site.layer]).min()) >= 0
            without.append(float(routing_margin(logits_NE, ids_NK, None).min()))
    assert min(without) < 0, "this model's biases choose nothing, so the test sees nothing"


def rerouted(folder: Path, *, identical: bool) -> Shown:
    """Audits a model against itself with another router; its experts are copies of one, or as they are."""
    state = dict(small_state())
    changed = {n: v[:1].expand_as(v).clone() for n, v in state.items() if ".experts." in n and identical}
    generator = torch.Generator().manual_seed(0)
    router = {
        n: v + 0.05 * torch.randn(v.shape, generator=generator) for n, v in state.items() if n.endswith("gate.weight")
    }
    assert router
    hi = open_small(write_small(folder / "hi", changed=changed))
    lo = open_small(write_small(folder / "lo", changed=changed | router))
    return diagnose(world_probes(), run(hi, lo, plan_batches(world_probes(), 40)[:1]), weight_evidence())


def test_flips_between_copies_of_one_expert_are_said_to_have_no_effect(tmp_path: Path) -> None:
    found = number(rerouted(tmp_path, identical=True), "tokens-rerouted")
    assert found.value is not None and found.value > 0.1 and found.floor == 0.0
    assert NO_EFFECT in found.note.lower()


def test_flips_between_different_experts_are_not(tmp_path: Path) -> None:
    found = number(rerouted(tmp_path, identical=False), "tokens-rerouted")
    assert found.value is not None and found.value > 0.1
    assert found.note == ""


def test_an_effect_is_what_leaves_the_floor_in_states_or_in_distributions() -> None:
    still = Effect(hidden=2e-5, hidden_floor=1e-5, kl=4e-10, kl_floor=1e-10)
    assert not has_effect(still)
    assert has_effect(still._replace(hidden=4e-5)) and has_effect(still._replace(kl=1e-9))
    assert has_effect(still._replace(hidden=math.nan)) and has_effect(still._replace(kl=math.nan))
    assert not has_effect(Effect(hidden=1e-6, hidden_floor=0.0, kl=1e-12, kl_floor=0.0))


def answers(lost: int, gained: int) -> Shown:
    """Returns the flips of a table with so many answers lost and gained in the family of sums."""
    positions = at("sums")
    hi, lo = good_values(), good_values()
    lo["accuracy"] = lo["accuracy"].copy()
    hi["accuracy"] = hi["accuracy"].copy()
    lo["accuracy"][positions[:lost]] = 0
    hi["accuracy"][positions[lost : lost + gained]] = 0
    return diagnose_answers(PROBES, table_of(hi, lo), table_of(good_values(), good_values()))


@pytest.mark.parametrize(("lost", "gained", "direction"), [(6, 2, 0.25), (0, 3, 1.0), (0, 0, None)])
def test_flips_are_told_apart_by_direction(lost: int, gained: int, direction: float | None) -> None:
    found = answers(lost, gained)
    assert [number(found, name).value for name in ("answers-lost", "answers-gained", "answer-volume")] == [
        lost,
        gained,
        lost + gained,
    ]
    assert number(found, "answer-direction").value == direction
    volume = lost + gained
    tail = sum(math.comb(volume, k) for k in range(min(lost, gained) + 1)) / 2**volume
    assert number(found, "answer-mcnemar").value == pytest.approx(min(1.0, 2 * tail), rel=1e-12)
    by_family = series(found, "answers-lost-by-family")
    assert by_family.labels == PROBES.families() and by_family.values == (lost / 200, 0.0, 0.0, 0.0, 0.0)
    assert series(found, "answers-gained-by-family").values[0] == gained / 200
    if direction is not None:
        # score = ref + volume (2 f - 1) / N
        assert (gained - lost) / 1000 == pytest.approx(volume * (2 * direction - 1) / 1000, abs=2.0**-60)


def test_without_a_floor_numbers_stand_alone(measured: Measurements) -> None:
    bare = Measurements(
        lo=measured.lo, sums=measured.sums, floor_sums=LayerSums(num_experts=8), details=measured.details
    )
    shown = diagnose(world_probes(), bare, weight_evidence())
    assert all(d.floor is None for d in shown.diagnostics) and all(s.floor == () for s in shown.series)
    full = diagnose(world_probes(), measured, weight_evidence())
    assert [(d.name, d.value) for d in shown.diagnostics] == [(d.name, d.value) for d in full.diagnostics]


def test_nothing_measured_shows_nothing() -> None:
    empty = Measurements(sums=LayerSums(num_experts=2), floor_sums=LayerSums(num_experts=2))
    shown = diagnose(PROBES, empty, weight_evidence())
    assert {d.name for d in shown.diagnostics} == {"weight-sqnr-slope", "hidden-error-slope"}
    assert shown.series == ()
    assert diagnose_answers(PROBES, Table(), Table()) == Shown()


def test_what_overflows_is_absent_and_said_to_be(measured: Measurements) -> None:
    tokens = tokens_of(measured.details)
    excess_M = tokens.view.excess_M.copy()
    excess_M[3] = math.inf
    kl_M = tokens.view.kl_M.copy()
    kl_M[5] = math.nan
    broken = replace(tokens, view=replace(tokens.view, excess_M=excess_M, kl_M=kl_M))
    shown = diagnose_tokens(world_probes(), broken, None)
    kl = number(shown, "kl-per-token")
    assert kl.value is None and kl.interval is None and "Not finite" in kl.note
    assert number(shown, "importance-ess-expected").value == 0.0
    assert number(shown, "same-top").value is not None
    assert any(v is None for v in series(shown, "kl-by-family").values)
    found = diagnostic(
        "x", Topic.TOKENS, "x", unit="x", larger_is_better=None, value=None, floor=math.inf, num_items=0, note="n"
    )
    assert (found.value, found.floor, found.note) == (None, None, "n")


def test_slopes_over_depth_leave_out_what_did_not_change() -> None:
    evidence = replace(
        weight_evidence(),
        sqnr_db={("w1", 1): [20.0, 200.0], ("w2", 1): [24.0, 24.0], ("w1", 2): [200.0, 200.0], ("w1", 3): [18.0, 18.0]},
    )
    sums = LayerSums(num_experts=2)
    for layer, error in ((0, 0.0), (1, 1e-6), (2, 1e-5), (3, 1e-4)):
        sums.hidden[layer] = HiddenSums(signal=1.0, error=error)
    shown = diagnose_depth(evidence, sums, LayerSums(num_experts=2))
    # Means are (20 + 24 + 24) / 3 at layer 1 and 18 at layer 3; the error grows tenfold in power a layer.
    assert number(shown, "weight-sqnr-slope").value == pytest.approx((18 - 68 / 3) / 2, rel=2.0**-48)
    assert number(shown, "hidden-error-slope").value == pytest.approx(10.0, rel=2.0**-44)
    assert number(shown, "hidden-error-slope").floor is None


def test_calibration_of_a_model_that_grew_boastful(measured: Measurements) -> None:
    tokens = tokens_of(measured.details)
    right_M = np.array([i % 2 for i in range(len(tokens.view))], dtype=np.float64)
    view = replace(
        tokens.view,
        hi_confidence_M=np.full(len(tokens.view), 0.5),
        lo_confidence_M=np.full(len(tokens.view), 0.95),
        hi_right_M=right_M,
        lo_right_M=right_M,
    )
    measured_again = replace(measured)
    measured_again.details = Details(routing=RoutingLog())
    measured_again.details.tokens.parts.append(replace(tokens, view=view))
    shown = diagnose(world_probes(), measured_again, weight_evidence())
    share = float(view.hi_right_M.mean())
    assert number(shown, "delta-ece").value == pytest.approx(abs(0.95 - share) - abs(0.5 - share), abs=2.0**-44)
    brier = (1 - share) * (0.95**2 - 0.25) + share * (0.05**2 - 0.25)
    assert number(shown, "delta-brier").value == pytest.approx(brier, abs=2.0**-44)
    assert number(shown, "delta-overconfidence").value == pytest.approx(1 - share, abs=2.0**-44)
    assert number(shown, "delta-auroc").value == 0.0  # all tied on both sides
