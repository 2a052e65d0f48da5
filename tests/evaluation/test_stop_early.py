"""Looks before the last probe reject what is surely harmful, never a lo within its margins more often than said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quantaudit.composition import carry_out
from quantaudit.core.contract import Clause, Contract, Direction, Kind
from quantaudit.core.decision import Decision, Method, Outcome
from quantaudit.core.errors import InputError
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.evaluation.clauses import decide_clauses
from quantaudit.evaluation.early import (
    END_ALPHA,
    LOOKS_ALPHA,
    Ending,
    LookPlan,
    finish,
    look,
    plan_looks,
    reject_log_evidence,
)
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.sequential_pass import NUM_CHUNKS, batches_of, plan_course
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.stopped import settle
from quantaudit.evaluation.table import Table, select
from quantaudit.observers.sums import LayerSums
from quantaudit.stats import SequentialTest, correct_rejections, decide, estimate_flips, gather
from quantaudit.stats.betting import Bets, Claim, log_evidence, log_two_sided
from tests.evaluation.subjects import lenient_contract, order, world_probes
from tests.evaluation.synthetic import at, clause, contract, evidence, good_values, probe_set, table_of

PROBES = probe_set()
RATES = (clause("task"), clause("refusal"))


def cut(table: Table, end: int) -> Table:
    """Returns the part of a table that a pass has measured after so many probes."""
    part = Table()
    for name in table.parts:
        part.parts[name] = [select(table.readings(name), np.arange(end))]
    return part


def measured(lo: Table, end: int, *, floor: Table | None = None, identity: Table | None = None) -> Measurements:
    """Returns a pass after so many probes."""
    good = good_values(PROBES)
    same = table_of(good, good)
    return Measurements(
        lo=cut(lo, end),
        floor=cut(floor or same, end),
        identity=cut(identity or same, end),
        sums=LayerSums(num_experts=2),
        floor_sums=LayerSums(num_experts=2),
        num_probes=end,
    )


def lossy(plan: LookPlan, observer: str, share: float, *families: str, change: float = -1.0) -> Table:
    """Returns a lo that changes one observer on the first probes of every cluster of these families, in the course."""
    probes = plan.course.probes
    hi = good_values(probes)
    lo = {name: values.copy() for name, values in hi.items()}
    chosen = at(*families, probes=probes)
    rng = np.random.default_rng(0)
    hit = chosen[rng.random(len(chosen)) < share]
    lo[observer][hit] += change
    return table_of(hi, lo)


def small_contract(*clauses: Clause, min_probes: int = 15) -> Contract:
    return contract(*clauses, min_probes=min_probes, min_clusters=5)


def stop(plan: LookPlan, lo: Table) -> Ending:
    """Runs the looks of a pass and returns how it ended."""
    for end in plan.course.ends:
        if look(plan, measured(lo, end)):
            break
    return finish(PROBES, plan, measured(lo, end))


def test_chunks_keep_clusters_whole_and_families_in_proportion() -> None:
    course = plan_course(PROBES)
    assert sorted(p.id for p in course.probes.probes) == sorted(p.id for p in PROBES.probes)
    assert course.probes.families() == PROBES.families()
    names = clusters_at(course.probes, np.arange(len(PROBES.probes)))
    seen: set[str] = set()
    for start, end in zip((0, *course.ends), course.ends, strict=False):
        assert not seen & set(names[start:end])
        seen |= set(names[start:end])
        families = [p.family for p in course.probes.probes[start:end]]
        # 40 clusters of 5 probes a family: 4 in each of 10 chunks
        assert [families.count(f) for f in PROBES.families()] == [20] * 5
    assert len(course.ends) == NUM_CHUNKS


def test_the_course_is_a_function_of_the_probes_alone() -> None:
    assert plan_course(PROBES) == plan_course(PROBES)
    assert plan_course(PROBES).probes.probes != PROBES.probes


def test_batches_cover_every_probe_once_and_end_with_their_chunk() -> None:
    course = plan_course(PROBES)
    batches = batches_of(course, 30)
    assert sorted(i for b in batches for i in b.index_P) == list(range(len(PROBES.probes)))
    assert all(b.probes == tuple(course.probes.probes[i] for i in b.index_P) for b in batches)
    done = np.cumsum([len(b.index_P) for b in batches])
    assert set(course.ends) <= set(done.tolist()) and max(len(b.index_P) for b in batches) == 30


def test_gates_that_can_be_bet_on_look_and_the_others_are_named() -> None:
    plan = plan_looks(contract(min_probes=15, min_clusters=4), PROBES)
    names = "task[sums] task[words] margin[sums] margin[words] refusal over-refusal"
    assert [g.part.name for g in plan.gates] == names.split()
    assert plan.others == ("degeneracy", "fidelity", "contrast")
    assert plan.evidence_needed == 6 / LOOKS_ALPHA and LOOKS_ALPHA + END_ALPHA == 0.05


def test_a_gate_does_not_look_before_it_has_the_evidence_that_the_contract_asks_for() -> None:
    plan = plan_looks(contract(*RATES, min_probes=150, min_clusters=20), PROBES)
    # families of 200 in 40 clusters: 160 probes in 32 clusters after 8 chunks; refusal has two families, 160 after 4,
    # and since restricted and wrapped requests share their clusters, 20 clusters after 5
    assert {g.part.name: g.first_look for g in plan.gates} == {"task[sums]": 8, "task[words]": 8, "refusal": 5}


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ((clause("fidelity"),), "no gate that can decide before the last probe"),
        ((clause("task").model_copy(update={"bound": 1.0}),), "is 0 or 1"),
        ((clause("fidelity").model_copy(update={"bound": 0.01}),), "bound of 0.01 for a margin of 0.02"),
    ],
)
def test_contracts_that_cannot_look_are_refused(clauses: tuple[Clause, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_looks(small_contract(*clauses), PROBES)


def test_a_contract_that_asks_for_more_probes_than_come_before_the_end_is_refused() -> None:
    with pytest.raises(InputError, match="leave out --stop-early"):
        plan_looks(small_contract(*RATES, min_probes=1000), PROBES)


def test_a_harmful_lo_stops_the_pass_and_only_what_rejected_is_decided() -> None:
    agreed = small_contract()
    plan = plan_looks(agreed, PROBES)
    lo = lossy(plan, "accuracy", 0.8, "sums")
    ending = stop(plan, lo)
    assert [r.gate.part.name for r in ending.rejections] == ["task[sums]"]
    assert len(ending.probes.probes) in plan.course.ends[:-1] and ending.num_looks >= 1
    end = len(ending.probes.probes)
    planted = {"softened": cut(lossy(plan, "nll", 1.0, change=0.5), end)}
    seen = evidence(cut(lo, end), probes=ending.probes, planted=planted, agreed=agreed)
    results = {r.name: r for r in settle(decide_clauses(agreed, seen), ending)}
    found = results["task[sums]"]
    assert found.decision.outcome is Outcome.FAIL and found.decision.p_reject <= LOOKS_ALPHA
    assert found.estimate is not None and found.estimate.method is Method.E_VALUE
    assert found.estimate.interval.lower > 0.02
    assert found.estimate.num_probes == sum(p.family == "sums" for p in ending.probes.probes)
    for name, result in results.items():
        if result.clause.kind == "gate" and name not in ("task[sums]", "integrity"):
            assert result.decision.outcome is Outcome.UNDECIDED
            assert f"after {len(ending.probes.probes):,} of 1,000 probes, on task[sums]" in result.decision.reason
    assert results["integrity"].decision.outcome is Outcome.PASS


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_a_lo_within_its_margins_runs_to_the_end(share: float) -> None:
    plan = plan_looks(small_contract(), PROBES)
    ending = stop(plan, lossy(plan, "accuracy", share, "sums"))
    assert ending.rejections == () and ending.probes == plan.course.probes
    assert ending.num_looks == NUM_CHUNKS - min(g.first_look for g in plan.gates)


@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_a_gate_with_two_sides_rejects_on_either(change: float) -> None:
    plan = plan_looks(small_contract(clause("over-refusal"), clause("refusal")), PROBES)
    families = ("plain", "wrapped") if change < 0 else ("benign",)
    ending = stop(plan, lossy(plan, "refusal-rate", 0.7, *families, change=change))
    assert [r.gate.part.name for r in ending.rejections] == ["refusal" if change < 0 else "over-refusal"]


def test_differences_are_clipped_to_the_bound_and_it_is_said() -> None:
    bounded = clause("fidelity").model_copy(update={"bound": 2.0})
    agreed = small_contract(bounded)
    plan = plan_looks(agreed, PROBES)
    lo = lossy(plan, "nll", 0.5, change=50.0)
    ending = stop(plan, lo)
    (rejection,) = ending.rejections
    assert rejection.test.num_clipped > 0 and max(rejection.test.means) <= 2.0
    seen = evidence(cut(lo, len(ending.probes.probes)), probes=ending.probes, agreed=agreed)
    (found,) = settle(decide_clauses(agreed, seen), ending)
    assert found.estimate is not None and found.estimate.method is Method.BETTING
    assert "clipped to 2" in found.decision.reason


def test_one_huge_difference_cannot_reject_what_is_bounded() -> None:
    plan = plan_looks(small_contract(clause("fidelity").model_copy(update={"bound": 2.0})), PROBES)
    assert stop(plan, lossy(plan, "nll", 0.004, change=1e9)).rejections == ()


@pytest.mark.parametrize("control", ["floor", "identity"])
def test_a_control_that_fails_keeps_looks_from_rejecting(control: str) -> None:
    plan = plan_looks(small_contract(), PROBES)
    lo = lossy(plan, "accuracy", 0.8, "sums")
    end = plan.course.ends[4]
    assert look(plan, measured(lo, end))
    broken = lossy(plan, "accuracy", 0.02, "sums")
    given = measured(lo, end, floor=broken) if control == "floor" else measured(lo, end, identity=broken)
    assert look(plan, given) == ()


def test_nothing_is_looked_at_inside_a_chunk_or_after_the_last() -> None:
    plan = plan_looks(small_contract(), PROBES)
    lo = lossy(plan, "accuracy", 1.0, "sums")
    assert look(plan, measured(lo, plan.course.ends[4] - 1)) == ()
    assert look(plan, measured(lo, plan.course.ends[-1])) == ()


def test_rejections_at_the_end_have_the_alpha_that_looks_left() -> None:
    agreed = small_contract(clause("task"))
    plan = plan_looks(agreed, PROBES)
    ending = Ending(planned=PROBES, probes=plan.course.probes, plan=plan, num_looks=8)
    results = decide_clauses(agreed, evidence(lossy(plan, "accuracy", 0.0), probes=plan.course.probes, agreed=agreed))
    failing = {
        r.name: r.model_copy(
            update={"decision": r.decision.model_copy(update={"outcome": Outcome.FAIL, "p_reject": p})}
        )
        for r, p in zip(results, (0.02, 0.001), strict=True)
    }
    assert all(
        d.outcome is Outcome.FAIL for d in correct_rejections({n: r.decision for n, r in failing.items()}).values()
    )
    assert [r.decision.outcome for r in settle(tuple(failing.values()), ending)] == [Outcome.FAIL, Outcome.FAIL]
    harder = failing | {
        "task[sums]": failing["task[sums]"].model_copy(
            update={"decision": failing["task[sums]"].decision.model_copy(update={"p_reject": 0.03})}
        )
    }
    outcomes = {r.name: r.decision for r in settle(tuple(harder.values()), ending)}
    assert outcomes["task[sums]"].outcome is Outcome.UNDECIDED and "spent on looks" in outcomes["task[sums]"].reason
    assert outcomes["task[words]"].outcome is Outcome.FAIL


CLUSTERS, SIZE, GATES, MARGIN = 40, 10, 5, 0.02
ENDS = tuple(range(4, CLUSTERS, 4))  # in clusters: the ends of all chunks but the last


def clustered_flips(
    rng: np.random.Generator, worse: NDArray[np.float64], better: float, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Returns damage, shape + (CLUSTERS, SIZE), of flips that come together: a cluster has its own rate, ICC .2.

    Args:
        rng: Source of chance.
        worse: Mean rate of flips for the worse of every cluster, broadcast over `shape`.
        better: The other way.
        shape: Replicates.
    """
    total = 1 / 0.2 - 1  # a Beta with parameters q t and (1 - q) t has the intraclass correlation 1 / (1 + t)
    worse_G = np.broadcast_to(worse, (*shape, CLUSTERS))
    rate_G = rng.beta(worse_G * total, (1 - worse_G) * total)
    draw = rng.random((*shape, CLUSTERS, SIZE))
    lost = draw < rate_G[..., None]
    gained = draw > 1 - better
    return lost.astype(np.float64) - gained


def rejects_at_a_look(damage: NDArray[np.float64], direction: Direction = Direction.WORSE) -> NDArray[np.bool_]:
    """Tells of each replicate whether any gate rejects at any look; damage is [replicates, gates, CLUSTERS, SIZE]."""
    bets = Bets(damage.mean(-1), np.ones(CLUSTERS), 1.0)
    if direction is Direction.BOTH:
        won = log_two_sided(bets, MARGIN)
    else:
        won = log_evidence(bets, MARGIN, Claim.ABOVE)
    at_looks = won[..., [end - 1 for end in ENDS]]
    return np.asarray((at_looks >= math.log(GATES / LOOKS_ALPHA)).any((-1, -2)))


def decide_at_the_end(damage: NDArray[np.float64]) -> dict[str, Decision]:
    """Returns what the gates decide on all probes, with half of alpha for rejections."""
    names = [f"c{i}" for i in range(CLUSTERS) for _ in range(SIZE)]
    decisions = {}
    for number, gate in enumerate(damage):
        # an audit takes the design effect from the margins behind the flips; here it is known
        estimate = estimate_flips(gather(gate.reshape(-1), names), least_design_effect=1 + (SIZE - 1) * 0.2)
        decisions[str(number)] = decide(estimate, direction=Direction.WORSE, margin=MARGIN)
    return correct_rejections(decisions, alpha=END_ALPHA)


# At the margin every gate is as hard to tell from a harmful one as can be. In `mixed` families half of the clusters of
# each chunk are far beyond it and half far inside.
AT_THE_MARGIN = {
    "sparse": (np.full(CLUSTERS, MARGIN), 0.0),
    "two-way": (np.full(CLUSTERS, 0.1 + MARGIN), 0.1),
    "mixed": (np.tile([0.3 + 2 * MARGIN, 1e-9], CLUSTERS // 2), 0.15),
}


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("kind", AT_THE_MARGIN)
def test_looks_reject_a_lo_at_its_margin_as_seldom_as_they_say(kind: str, direction: Direction) -> None:
    worse, better = AT_THE_MARGIN[kind]
    num = 2000
    rejected = rejects_at_a_look(
        clustered_flips(np.random.default_rng(4), worse, better, (num, GATES)), direction
    ).mean()
    # three Monte Carlo standard errors of a share of .025 among 2,000: 1 point
    assert rejected <= LOOKS_ALPHA + 3 * math.sqrt(LOOKS_ALPHA * (1 - LOOKS_ALPHA) / num)


def test_looks_and_the_end_together_reject_a_lo_at_its_margin_at_most_alpha_of_the_time() -> None:
    num = 80
    damage = clustered_flips(np.random.default_rng(5), *AT_THE_MARGIN["two-way"], (num, GATES))
    at_a_look = rejects_at_a_look(damage)
    at_the_end = [any(d.outcome is Outcome.FAIL for d in decide_at_the_end(gates).values()) for gates in damage]
    # three Monte Carlo standard errors of a share of .05 among 80: 7 points
    assert (at_a_look | np.array(at_the_end)).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)


def test_a_lo_at_its_margin_is_admitted_at_most_alpha_of_the_time() -> None:
    num = 150
    # the other gates are harmless and always pass
    damage = clustered_flips(np.random.default_rng(6), *AT_THE_MARGIN["sparse"], (num, 1))
    passes = np.array([decide_at_the_end(gates)["0"].outcome is Outcome.PASS for gates in damage])
    # three Monte Carlo standard errors of a share of .05 among 150: 5 points
    assert (passes & ~rejects_at_a_look(damage)).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)


def test_looks_find_what_is_far_beyond_its_margin() -> None:
    damage = clustered_flips(np.random.default_rng(7), np.full(CLUSTERS, 0.5), 0.0, (200, 1))
    assert rejects_at_a_look(damage).mean() > 0.95


def test_the_evidence_of_a_look_is_what_was_simulated() -> None:
    means_G = clustered_flips(np.random.default_rng(8), np.full(CLUSTERS, 0.1), 0.02, ()).mean(-1)
    bets = Bets(means_G, np.ones(CLUSTERS), 1.0)
    for direction, won in (
        (Direction.WORSE, log_evidence(bets, MARGIN, Claim.ABOVE)),
        (Direction.BOTH, log_two_sided(bets, MARGIN)),
    ):
        seen = SequentialTest(
            direction=direction,
            margin=MARGIN,
            largest_cluster=SIZE,
            means=tuple(float(m) for m in means_G),
            sizes=(SIZE,) * CLUSTERS,
        )
        assert reject_log_evidence(seen) == won[-1]


def bounded_contract(margin: float) -> Contract:
    """Returns a contract whose gate on divergence may look: an untrained model has no answers to lose."""
    gate = clause("kl-forward").model_copy(update={"kind": Kind.GATE, "margin": margin, "bound": 2 * margin + 1})
    lenient = lenient_contract()
    return lenient.model_copy(update={"min_clusters": 5, "clauses": (clause("integrity"), gate)})


def run(hi: Path, agreed: Contract, recipe: str = "int2") -> AuditReport:
    """Runs an audit that may stop."""
    given = order(hi, recipe=load_recipe(recipe))
    settings = replace(given.settings, stop_early=True)
    return carry_out(replace(given, contract=agreed, settings=settings), lambda stage, done, total: None)


def test_an_audit_that_stops_says_so_everywhere_and_can_be_repeated(audited: Path) -> None:
    report, again = (run(audited / "plain", bounded_contract(0.001)) for _ in range(2))
    assert report.report_digest() == again.report_digest()
    block = report.sequential
    assert block is not None and block.stopped_early and block.gates == ("kl-forward",)
    assert block.num_probes_run == report.probes.num_probes < block.num_probes_planned == len(world_probes().probes)
    assert report.verdict.admission is Admission.REJECT and report.verdict.deciding == ("kl-forward",)
    told = f"after {block.num_probes_run:,} of {block.num_probes_planned:,} probes"
    assert told in report.verdict.sentence and any(told in line for line in report.not_examined)
    assert report.ladder is None and not report.verdict.safety_may_be_read
    assert report.probes.probes_digest == world_probes().digest()
    assert AuditReport.from_json(report.to_json()) == report


def test_an_audit_within_its_margin_runs_to_the_end(audited: Path) -> None:
    report = run(audited / "plain", bounded_contract(50.0), "k3-w4a16")
    assert report.sequential is not None and not report.sequential.stopped_early
    assert report.probes.num_probes == len(world_probes().probes)
    assert report.sequential.num_looks > 0 and any("can only reject" in note for note in report.notes)


def test_an_exact_audit_has_nothing_to_look_at(audited: Path) -> None:
    report = run(audited / "plain", bounded_contract(0.001), "identity")
    assert report.sequential is None and report.verdict.admission is Admission.ADMIT
    assert "sequential" not in report.to_json()
