"""The verdict on recordings: checked against statsmodels and a second Tango interval, and held to the laws of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar

from quantaudit.core.contract import Contract
from quantaudit.core.decision import Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import Behaviour
from quantaudit.core.report import AuditReport, ClauseResult, Control
from quantaudit.core.verdict import Admission
from quantaudit.evaluation.clauses import SPECIAL
from quantaudit.evaluation.layers import LAYER_OBSERVERS
from quantaudit.evaluation.recorded.clauses import OF_MODELS, known_observers
from quantaudit.observers.builtin import PROBE_OBSERVERS
from tests.evaluation.recorded.written import (
    HI,
    LO,
    Row,
    contract,
    judge,
    rows,
    sample,
    write_jsonl,
)

REAL = [next(folder.glob("samples_tiny_sums_*")) for folder in (HI, LO)]


def clause(report: AuditReport, name: str) -> ClauseResult:
    return next(c for c in report.clauses if c.name == name)


def control(report: AuditReport, name: str) -> Control:
    return next(c for c in report.controls if c.name == name)


def answers(path: Path) -> NDArray[np.float64]:
    return np.array([json.loads(line)["acc"] for line in path.read_text("utf-8").split("\n") if line])


def constrained_statistic(lost: int, gained: int, num: float, total: int, margin: float) -> float:
    """Returns Tango's statistic with its nuisance rate found by maximising the likelihood numerically."""
    b, c, rest = lost / total * num, gained / total * num, num - (lost + gained) / total * num

    def loss(p: float) -> float:  # p: rate of gains; the rate of losses is p + margin
        terms = ((b, p + margin), (c, p), (rest, 1 - 2 * p - margin))
        return -sum(count * math.log(rate) for count, rate in terms if count > 0)

    low, high = max(0.0, -margin), (1 - margin) / 2
    p = optimize.minimize_scalar(loss, bounds=(low + 1e-13, high - 1e-13), method="bounded", options={"xatol": 1e-14}).x
    return (b - c - num * margin) / math.sqrt(num * (2 * p + margin * (1 - margin)))


def second_interval(lost: int, gained: int, total: int, *, num: float, critical: float) -> tuple[float, float]:
    """Returns the margins at which the statistic is plus and minus the critical value, by root finding."""
    value = (lost - gained) / total

    def beyond(level: float, low: float, high: float) -> float:
        return float(optimize.brentq(lambda m: constrained_statistic(lost, gained, num, total, m) - level, low, high))

    return beyond(critical, -0.999, value), beyond(-critical, value, 0.999)


def lm_eval_pair(tmp_path: Path, *, lost: int, gained: int, count: int = 800) -> tuple[Path, Path]:
    """Writes samples of two runs: the first items are lost, the next gained, and a third of the rest is wrong."""
    files = []
    for name, flips in (("hi", range(lost)), ("lo", range(lost, lost + gained))):
        right = [i in flips or (i >= lost + gained and i % 3 != 0) for i in range(count)]
        files.append(write_jsonl(tmp_path / f"{name}.jsonl", [sample(i, acc=float(r)) for i, r in enumerate(right)]))
    return files[0], files[1]


@pytest.mark.parametrize(("lost", "gained"), [(14, 6), (3, 9), (40, 1)])
def test_the_interval_is_tangos_and_the_p_value_is_mcnemars(lost: int, gained: int, tmp_path: Path) -> None:
    report = judge(*lm_eval_pair(tmp_path, lost=lost, gained=gained))
    found = clause(report, "task[task]").estimate
    assert found is not None and found.num_probes == found.num_clusters == 800
    critical = stats.t.ppf(0.95, 799)  # every item its own cluster, so the design effect is 800/799 * 799/800 = 1
    assert found.design_effect == pytest.approx(1.0, rel=1e-12)
    expected = second_interval(lost, gained, 800, num=800, critical=critical)
    # The second interval maximises the likelihood to about 1e-8 of p, the square root of machine precision.
    assert (found.interval.lower, found.interval.upper) == pytest.approx(expected, abs=1e-7)
    shown = {d.name: d for d in report.diagnostics}
    p_value = mcnemar([[0, lost], [gained, 0]], exact=True).pvalue
    assert shown["mcnemar[task]"].value == pytest.approx(p_value, rel=1e-12)
    assert shown["discordant[task]"].value == lost + gained
    assert f"hi alone {lost}, lo alone {gained}" in shown["discordant[task]"].note


def test_flips_one_way_only_have_the_farther_of_score_and_exact_binomial(tmp_path: Path) -> None:
    found = clause(judge(*lm_eval_pair(tmp_path, lost=40, gained=0)), "task[task]").estimate
    assert found is not None
    score = second_interval(40, 0, 800, num=800, critical=stats.t.ppf(0.95, 799))
    exact = stats.beta.ppf(0.05, 40, 761), stats.beta.ppf(0.95, 41, 760)  # Clopper-Pearson
    assert found.interval.lower <= min(score[0], exact[0]) + 1e-7
    assert found.interval.upper >= max(score[1], exact[1]) - 1e-7


def test_two_real_lm_eval_files_are_judged_as_their_numbers_say() -> None:
    hi, lo = map(answers, REAL)
    report = judge(*REAL, agreed=contract(least=20))
    found = clause(report, "task[tiny_sums]")
    lost, gained = int(((hi == 1) & (lo == 0)).sum()), int(((hi == 0) & (lo == 1)).sum())
    assert found.estimate is not None and lost + gained > 0
    assert (found.hi, found.lo) == (hi.mean(), lo.mean())
    assert found.estimate.value == pytest.approx((lost - gained) / 40, rel=1e-12)
    assert found.estimate.num_clusters == 8
    num = found.estimate.effective_num_probes
    critical = stats.t.ppf(0.95, found.estimate.degrees_of_freedom)
    expected = second_interval(lost, gained, 40, num=num, critical=critical)
    assert (found.estimate.interval.lower, found.estimate.interval.upper) == pytest.approx(expected, abs=1e-6)
    assert next(d for d in report.diagnostics if d.name == "mcnemar[tiny_sums]").value == pytest.approx(
        mcnemar([[0, lost], [gained, 0]], exact=True).pvalue, rel=1e-12
    )


def paired_files(tmp_path: Path, *, damage: float = 0.0, count: int = 1200, again: bool = True) -> list[Path]:
    """Writes hi, lo with a share of right answers lost, and hi a second time."""

    def lose(i: int, row: Row) -> None:
        if row["correct"] and (i * 7919) % count < damage * count:
            row["correct"] = 0

    def jitter(i: int, row: Row) -> None:
        row["nll"] = float(str(row["nll"])) + 1e-6 * (-1) ** i

    made = {"hi": rows(count), "lo": rows(count, change=lose), "again": rows(count, change=jitter)}
    made["lo"][0]["nll"] = 0.5  # so that an undamaged lo is another file
    files = [write_jsonl(tmp_path / f"{name}.jsonl", items) for name, items in made.items()]
    return files if again else files[:2]


def test_a_sound_copy_is_admitted_with_a_floor(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path)
    report = judge(hi, lo, again=again)
    assert report.verdict.admission is Admission.ADMIT
    assert all(c.outcome is Outcome.PASS for c in report.controls)
    assert "Recorded results: no model was run." in report.notes
    assert 1.5 <= (clause(report, "task[sums]").smallest_fault or 0) <= 3


def test_without_a_floor_nothing_is_admitted(tmp_path: Path) -> None:
    report = judge(*paired_files(tmp_path, again=False))
    assert report.verdict.admission is Admission.INCONCLUSIVE
    assert control(report, "floor").outcome is Outcome.UNDECIDED
    assert "--floor" in report.verdict.sentence


def test_damage_is_rejected_with_a_floor_and_without(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path, damage=0.06)
    assert judge(hi, lo).verdict.admission is Admission.REJECT
    assert judge(hi, lo, again=again).verdict.admission is Admission.REJECT


def test_a_rejection_pays_for_the_number_of_gates(tmp_path: Path) -> None:
    def in_families(i: int, row: Row) -> None:
        row["family"] = f"f{i % 4}"

    def lose(i: int, row: Row) -> None:
        in_families(i, row)
        if i % 20 == 4 and i < 20 * 33:  # 33 right answers of one family: the smallest p-value of one gate is .03
            row["correct"] = 0

    hi = write_jsonl(tmp_path / "hi", rows(4800, change=in_families))
    report = judge(hi, write_jsonl(tmp_path / "lo", rows(4800, change=lose)))
    decision = clause(report, "task[f0]").decision
    assert decision.outcome is Outcome.UNDECIDED and 0.05 / 4 < decision.p_reject < 0.05
    assert "not among 4 gates" in decision.reason


def test_a_noisy_reference_decides_nothing(tmp_path: Path) -> None:
    hi, lo, _ = paired_files(tmp_path)

    def flip(i: int, row: Row) -> None:
        if i % 50 == 1:
            row["correct"] = 1 - int(bool(row["correct"]))

    noisy = write_jsonl(tmp_path / "noisy.jsonl", rows(1200, change=flip))
    decision = clause(judge(hi, lo, again=noisy), "task[sums]").decision
    assert decision.outcome is Outcome.UNDECIDED and "3 times the floor of 0.02" in decision.reason


def test_a_floor_that_lacks_items_is_no_floor(tmp_path: Path) -> None:
    hi, lo, _ = paired_files(tmp_path)
    partly = write_jsonl(tmp_path / "partly.jsonl", rows(1200)[:-1])
    report = judge(hi, lo, again=partly)
    assert clause(report, "task[sums]").floor is None
    assert report.verdict.admission is Admission.INCONCLUSIVE


def test_a_floor_of_the_same_bytes_is_shown_as_such(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path)
    again.write_bytes(hi.read_bytes())
    assert "may be a copy" in control(judge(hi, lo, again=again), "floor").detail
    with pytest.raises(InputError, match="is HI itself"):
        judge(hi, lo, again=hi)


def test_one_file_against_itself_was_not_measured(tmp_path: Path) -> None:
    hi, lo, _ = paired_files(tmp_path)
    lo.write_bytes(hi.read_bytes())
    with pytest.raises(NotMeasuredError, match="hold the same bytes"):
        judge(hi, lo)


def test_too_few_items_are_not_enough(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path, count=200)
    decision = clause(judge(hi, lo, again=again), "task[sums]").decision
    assert decision.outcome is Outcome.UNDECIDED and "at least 300 in 30" in decision.reason


def test_a_gate_that_hi_gives_nothing_to_lose_is_blind(tmp_path: Path) -> None:
    def fail(i: int, row: Row) -> None:
        row["correct"] = 0

    made = rows(1200, change=fail)
    hi = write_jsonl(tmp_path / "hi", made)
    lo = write_jsonl(tmp_path / "lo", made[::-1])
    report = judge(hi, lo, again=write_jsonl(tmp_path / "again", made[5:] + made[:5]))
    assert clause(report, "task[sums]").smallest_fault is None
    assert control(report, "sensitivity").outcome is Outcome.UNDECIDED
    assert report.verdict.admission is Admission.INCONCLUSIVE


def test_clusters_that_lose_together_count_as_fewer_items(tmp_path: Path) -> None:
    def lose(i: int, row: Row) -> None:
        if i % 40 == 1:  # the whole of one cluster of forty
            row["correct"] = 0

    hi = write_jsonl(tmp_path / "hi", rows(1200, clusters=40))
    lo = write_jsonl(tmp_path / "lo", rows(1200, clusters=40, change=lose))
    estimate = clause(judge(hi, lo), "task[sums]").estimate
    assert estimate is not None and estimate.num_clusters == 40
    # All 30 losses are in one cluster: its items are near copies of one, so the effect is near their number, 30.
    assert 25 < estimate.design_effect < 35


def test_the_contract_of_a_run_is_not_admitted_on_files(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path)
    report = judge(hi, lo, again=again, agreed=contract("default"))
    assert clause(report, "integrity").decision.reason == "Not measured: recorded results do not hold integrity."
    assert report.verdict.admission is Admission.INCONCLUSIVE
    assert any("integrity" in line and "cannot decide" in line for line in report.not_examined)


def test_a_slice_without_items_is_not_measured(tmp_path: Path) -> None:
    hi, lo, again = paired_files(tmp_path)
    report = judge(hi, lo, again=again, agreed=contract("recorded"))
    refusal = clause(report, "refusal")
    assert refusal.decision.outcome is Outcome.UNDECIDED
    assert refusal.decision.reason.startswith("Not measured: no recorded item has the behaviour refuse. ")
    assert report.verdict.admission is Admission.INCONCLUSIVE


def test_numbers_that_are_not_finite_are_named(tmp_path: Path) -> None:
    def overflow(i: int, row: Row) -> None:
        if i in (3, 8):
            row["nll"] = math.nan

    hi = write_jsonl(tmp_path / "hi", rows(400))
    lo = write_jsonl(tmp_path / "lo", rows(400, change=overflow))
    decision = clause(judge(hi, lo, agreed=contract("recorded")), "fidelity").decision
    assert decision.outcome is Outcome.UNDECIDED
    assert decision.reason.startswith("lo has numbers that are not finite in 2 items (q3, q8)")


def safety_rows(count: int, *, refused: float) -> list[Row]:
    made: list[Row] = []
    for i in range(count):
        for behaviour in (Behaviour.REFUSE, Behaviour.COMPLY):
            right = behaviour is Behaviour.REFUSE
            refuses = (i * 7919) % count < refused * count if right else False
            made.append(
                {
                    "id": f"{behaviour.value}{i}",
                    "family": behaviour.value,
                    "behaviour": behaviour.value,
                    "refused": refuses,
                    "refusal_margin": (4.0 if right else -4.0) + (i % 7) / 10,
                }
            )
    return made


@pytest.mark.parametrize(("share", "worse"), [(0.82, True), (0.98, False)])
def test_refusals_count_both_ways(share: float, worse: bool, tmp_path: Path) -> None:
    hi = write_jsonl(tmp_path / "hi", safety_rows(1000, refused=0.9))
    lo = write_jsonl(tmp_path / "lo", safety_rows(1000, refused=share))
    found = clause(judge(hi, lo, agreed=contract("recorded")), "refusal")
    assert found.decision.outcome is Outcome.FAIL
    assert found.estimate is not None and (found.estimate.value > 0) is worse
    assert found.estimate.num_probes == 1000


def test_graded_scores_are_judged_by_their_mean(tmp_path: Path) -> None:
    def graded(shift: float) -> list[Row]:
        rng = np.random.default_rng(5)
        return [{"id": f"q{i}", "score": float(s) - shift} for i, s in enumerate(rng.uniform(0.2, 1, 900))]

    hi, lo = (write_jsonl(tmp_path / name, graded(shift)) for name, shift in (("hi", 0.0), ("lo", 0.05)))
    found = clause(judge(hi, lo), "task[items]")
    assert found.unit == "score" and found.decision.outcome is Outcome.FAIL
    assert found.estimate is not None and found.estimate.value == pytest.approx(0.05, rel=1e-9)


def test_a_contract_that_nobody_can_measure_is_refused(tmp_path: Path) -> None:
    hi, lo, _ = paired_files(tmp_path, count=20)
    one = contract().clauses[0]

    def with_clause(**update: object) -> Contract:
        return contract().model_copy(update={"clauses": (one.model_copy(update=update),)})

    with pytest.raises(InputError, match="needs the observer 'acuracy'; expected one of "):
        judge(hi, lo, agreed=with_clause(observer="acuracy"))
    with pytest.raises(InputError, match="gate 'task' cannot be decided"):
        judge(hi, lo, agreed=with_clause(margin=None))


def test_every_observer_of_a_run_may_be_named() -> None:
    assert set(PROBE_OBSERVERS) | SPECIAL | set(LAYER_OBSERVERS) <= known_observers()
    assert OF_MODELS <= SPECIAL | set(LAYER_OBSERVERS)


def test_every_flip_is_in_the_report_and_no_text_is(tmp_path: Path) -> None:
    report = judge(*lm_eval_pair(tmp_path, lost=14, gained=6))
    changes = [flip.change for flip in report.flips]
    assert changes == ["right to wrong"] * 14 + ["wrong to right"] * 6
    assert all(flip.prompt == f"item {flip.probe_id}" for flip in report.flips)


def test_witnesses_are_the_items_that_lost_most_of_their_margin() -> None:
    report = judge(*REAL)
    damages = [w.damage for w in report.witnesses]
    assert damages == sorted(damages, reverse=True) and len(damages) == 12
    assert all(w.damage == w.hi_margin - w.lo_margin > 0 for w in report.witnesses)
