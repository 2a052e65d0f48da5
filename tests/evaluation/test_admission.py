"""The verdict: what rejects, at which gate, what leaves it open, and what a reader may still read."""

from __future__ import annotations

import pytest

from quantaudit.core.contract import Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.report import ClauseResult, Control
from quantaudit.core.verdict import Admission, ExitCode
from quantaudit.evaluation.admission import admit
from quantaudit.evaluation.clauses import decide_clauses
from tests.evaluation.synthetic import contract, evidence

PASS, FAIL, UNDECIDED = Outcome.PASS, Outcome.FAIL, Outcome.UNDECIDED
GOOD = decide_clauses(contract(), evidence())
CONTROLS = tuple(Control(name=n, outcome=PASS, detail="in order") for n in ("identity", "floor", "sensitivity"))


def results(**changed: Outcome) -> tuple[ClauseResult, ...]:
    """Returns the results of a harmless copy with the outcome of some clauses changed; brackets become `__`."""
    outcomes = {name.replace("__", "[") + ("]" if "__" in name else ""): o for name, o in changed.items()}
    assert set(outcomes) <= {r.name for r in GOOD}
    return tuple(
        r.model_copy(update={"decision": r.decision.model_copy(update={"outcome": outcomes[r.name], "reason": "So."})})
        if r.name in outcomes
        else r
        for r in GOOD
    )


def with_broken(name: str) -> tuple[Control, ...]:
    """Returns the controls with one that failed."""
    return tuple(
        c.model_copy(update={"outcome": FAIL, "detail": "it broke"}) if c.name == name else c for c in CONTROLS
    )


def test_all_gates_must_pass_to_admit() -> None:
    verdict = admit(results(), CONTROLS, is_exact=False)
    assert (verdict.admission, verdict.exit_code) == (Admission.ADMIT, ExitCode.PASS)
    assert verdict.sentence.startswith("Admitted: all 10 gates pass. The tightest is ")
    assert verdict.deciding == () and verdict.safety_may_be_read


def test_the_tightest_gate_uses_most_of_its_margin() -> None:
    uses = {
        r.name: max(r.estimate.interval.upper, -r.estimate.interval.lower if r.clause.direction == "both" else 0.0)
        / r.clause.margin
        for r in GOOD
        if r.estimate is not None and r.clause.margin is not None
    }
    worst = max(uses, key=lambda name: uses[name])
    sentence = admit(results(), CONTROLS, is_exact=False).sentence
    assert f"{worst}, at {uses[worst]:.0%} of its margin" in sentence


def test_exact_admission_says_so() -> None:
    verdict = admit(results(), CONTROLS, is_exact=True)
    assert verdict.admission is Admission.ADMIT and "decided exactly" in verdict.sentence


ORDER = ["integrity", "degeneracy", "fidelity", "task__sums", "refusal"]
SAFETY_READ = {"integrity": False, "degeneracy": False, "fidelity": False, "task__sums": True, "refusal": True}


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_failing_stage_gives_the_reason(first: int) -> None:
    verdict = admit(results(**dict.fromkeys(ORDER[first:], FAIL)), CONTROLS, is_exact=False)
    name = ORDER[first].replace("__", "[") + ("]" if "__" in ORDER[first] else "")
    assert (verdict.admission, verdict.exit_code) == (Admission.REJECT, ExitCode.REJECTED)
    stage = next(r.clause.stage for r in GOOD if r.name == name)
    more = len(ORDER) - first - 1
    expected = f"Rejected at the {stage.value} gate: {name}. So."
    expected += "" if not more else f" {more} more gate{'s fail' if more > 1 else ' fails'}."
    assert verdict.sentence == expected
    assert verdict.deciding[0] == name and len(verdict.deciding) == more + 1
    assert verdict.safety_may_be_read is SAFETY_READ[ORDER[first]]


def test_the_order_is_that_of_the_stages_not_of_the_contract() -> None:
    verdict = admit(results(refusal=FAIL, fidelity=FAIL)[::-1], CONTROLS, is_exact=False)
    assert verdict.deciding == ("fidelity", "refusal")
    assert [s.value for s in Stage] == ["integrity", "degeneracy", "fidelity", "task", "safety"]


def test_an_open_gate_is_inconclusive_and_says_what_would_settle_it() -> None:
    changed = results(refusal=UNDECIDED, fidelity=UNDECIDED)
    needed = {"num_that_would_decide": 4321}
    changed = tuple(
        r.model_copy(update={"decision": r.decision.model_copy(update=needed)}) if r.name == "fidelity" else r
        for r in changed
    )
    verdict = admit(changed, CONTROLS, is_exact=False)
    assert (verdict.admission, verdict.exit_code) == (Admission.INCONCLUSIVE, ExitCode.INCONCLUSIVE)
    assert verdict.sentence == "Inconclusive: 2 of 10 gates could not be decided, first fidelity. So."
    assert verdict.deciding == ("fidelity", "refusal")
    assert verdict.would_change[0] == "fidelity: about 4,321 probes would admit at this difference (1,000 now)."
    assert verdict.would_change[1] == "refusal: So."


def test_a_failure_outweighs_open_gates() -> None:
    assert admit(results(fidelity=UNDECIDED, refusal=FAIL), CONTROLS, is_exact=False).admission is Admission.REJECT


@pytest.mark.parametrize("control", ["identity", "floor", "sensitivity"])
def test_a_failed_control_is_inconclusive_whatever_the_forwards_say(control: str) -> None:
    for changed in (results(), results(fidelity=FAIL), results(degeneracy=FAIL, refusal=UNDECIDED)):
        verdict = admit(changed, with_broken(control), is_exact=False)
        assert verdict.admission is Admission.INCONCLUSIVE
        assert verdict.sentence == f"Inconclusive: the {control} control failed: it broke"
        assert verdict.deciding[0] == control


def test_weights_that_are_wrong_reject_without_any_forward() -> None:
    verdict = admit(results(integrity=FAIL, refusal=FAIL), with_broken("identity"), is_exact=False)
    assert verdict.admission is Admission.REJECT and verdict.deciding == ("integrity",)


def test_a_control_that_is_only_open_does_not_block_gates_that_passed() -> None:
    open_control = tuple(c.model_copy(update={"outcome": UNDECIDED}) for c in CONTROLS)
    assert admit(results(), open_control, is_exact=False).admission is Admission.ADMIT


def test_nothing_is_admitted_on_nothing() -> None:
    alarms = tuple(r for r in GOOD if r.clause.kind == "alarm")
    for nothing in ((), alarms):
        verdict = admit(nothing, CONTROLS, is_exact=False)
        assert verdict.admission is Admission.INCONCLUSIVE and "no gate" in verdict.sentence


def test_alarms_never_decide() -> None:
    alarming = tuple(
        r.model_copy(update={"decision": r.decision.model_copy(update={"outcome": FAIL})})
        if r.clause.kind == "alarm"
        else r
        for r in GOOD
    )
    assert admit(alarming, CONTROLS, is_exact=False).admission is Admission.ADMIT
