"""The clauses of the sample reports, as a run of the closed world gives them: passing, broken or undecided."""

from __future__ import annotations

import math
import random

from quantaudit.core.contract import Clause, Direction, Kind, Stage
from quantaudit.core.decision import Decision, Estimate, Interval, Method, Outcome
from quantaudit.core.report import ClauseResult

TASKS = ("facts", "recall", "copying", "sorting", "addition", "two-step", "long-recall")


def estimate(value: float, half_width: float, *, num: int = 400, rate: float | None = None) -> Estimate:
    """Returns an estimate with a symmetric interval."""
    return Estimate(
        value=value,
        standard_error=half_width / 1.66,
        degrees_of_freedom=59.0 if math.isfinite(half_width) else 0.0,
        interval=Interval(lower=value - half_width, upper=value + half_width, level=0.9),
        num_probes=num,
        num_clusters=60,
        design_effect=1.3,
        intraclass_correlation=0.05,
        method=Method.SCORE if rate is not None else Method.CR2,
        discordant_rate=rate,
    )


def decision(outcome: Outcome, *, reason: str, num: int | None = None, is_exact: bool = False) -> Decision:
    """Returns a decision with p-values that fit the outcome."""
    p_admit = {Outcome.PASS: 0.001, Outcome.FAIL: 1.0, Outcome.UNDECIDED: 0.21}[outcome]
    p_reject = {Outcome.PASS: 1.0, Outcome.FAIL: 0.001, Outcome.UNDECIDED: 0.4}[outcome]
    return Decision(
        outcome=outcome,
        is_exact=is_exact,
        p_admit=p_admit,
        p_reject=p_reject,
        num_that_would_decide=num,
        minimum_detectable_effect=0.0 if is_exact else 0.013,
        reason=reason,
    )


def result(
    name: str,
    stage: Stage,
    observer: str,
    unit: str,
    *,
    family: str | None = None,
    direction: Direction = Direction.WORSE,
    margin: float | None = None,
    kind: Kind = Kind.GATE,
    hi: float | None = None,
    damage: Estimate | None = None,
    floor: float | None = None,
    larger_is_better: bool = True,
    outcome: Outcome = Outcome.PASS,
    num: int | None = None,
    reason: str = "",
) -> ClauseResult:
    """Returns one clause; without hi it is decided exactly."""
    change = 0.0 if damage is None else damage.value
    is_exact = damage is None and hi is None
    return ClauseResult(
        name=f"{name}[{family}]" if family else name,
        clause=Clause(name=name, stage=stage, observer=observer, margin=margin, direction=direction, kind=kind),
        family=family,
        unit=unit,
        larger_is_better=larger_is_better,
        hi=hi,
        lo=None if hi is None else (hi - change if larger_is_better else hi + change),
        estimate=damage,
        floor=floor,
        decision=decision(outcome, reason=reason or explain(damage, outcome, margin), num=num, is_exact=is_exact),
    )


def explain(damage: Estimate | None, outcome: Outcome, margin: float | None) -> str:
    """Returns a reason that fits the numbers."""
    if damage is None:
        return "Both sides are equal, exactly."
    side = "beyond" if outcome is Outcome.FAIL else "inside"
    found = f"The difference is {damage.value:.4g} over {damage.num_probes:,} probes in {damage.num_clusters} clusters"
    return f"{found}, and the true one is at most {damage.interval.upper:.4g}, {side} the margin of {margin or 0:g}."


def clauses(scale: float, *, degenerate: bool = False, undecided: bool = False) -> tuple[ClauseResult, ...]:
    """Returns the default contract's clauses; damage grows with `scale`, and breaks everything if degenerate."""
    rng = random.Random(7)
    return (
        *_likelihood(scale, degenerate=degenerate),
        *(_task(i, f, scale, rng, degenerate=degenerate, undecided=undecided) for i, f in enumerate(TASKS)),
        *(_margin(f, scale, rng, degenerate=degenerate) for f in TASKS),
        *_safety(scale, degenerate=degenerate),
        *_alarms(scale, degenerate=degenerate),
    )


def _broken(degenerate: bool) -> Outcome:
    return Outcome.FAIL if degenerate else Outcome.PASS


def _likelihood(scale: float, *, degenerate: bool) -> list[ClauseResult]:
    integrity = result("integrity", Stage.INTEGRITY, "integrity", "", reason="Every declared tensor is quantized.")
    degeneracy = result(
        "degeneracy",
        Stage.DEGENERACY,
        "degeneracy",
        "nats",
        hi=-3.412,
        larger_is_better=False,
        damage=estimate(9.87 if degenerate else 0.004 * scale, 0.21 if degenerate else 0.003),
        outcome=_broken(degenerate),
        reason="lo predicts worse than a unigram model: at least 6.2 nats above it."
        if degenerate
        else "lo predicts far better than a unigram model, and beats chance in 7 of 7 families.",
    )
    fidelity = result(
        "fidelity",
        Stage.FIDELITY,
        "nll",
        "nats",
        margin=0.02,
        hi=0.1874,
        larger_is_better=False,
        damage=estimate(9.87 if degenerate else 0.0046 * scale, 0.0031, num=2_900),
        floor=0.0000021,
        outcome=_broken(degenerate),
    )
    return [integrity, degeneracy, fidelity]


def _task(
    index: int, family: str, scale: float, rng: random.Random, *, degenerate: bool, undecided: bool
) -> ClauseResult:
    is_hard = family in {"two-step", "long-recall"}
    is_open = undecided and family in {"two-step", "sorting"}
    value = 0.97 - 0.2 * rng.random() if degenerate else rng.uniform(0.0, 0.006) * scale
    return result(
        "task",
        Stage.TASK,
        "accuracy",
        "share",
        family=family,
        margin=0.02,
        hi=0.41 + 0.02 * index if is_hard else 0.985,
        damage=estimate(
            min(value, 0.4 if is_hard else 0.98) + (0.012 if is_open else 0), 0.0158 if is_open else 0.0085, rate=0.02
        ),
        floor=0.0,
        outcome=Outcome.UNDECIDED if is_open else _broken(degenerate),
        num=1_240 if is_open else None,
        reason="Too wide for the margin of 0.02; about 1,240 such probes would decide." if is_open else "",
    )


def _margin(family: str, scale: float, rng: random.Random, *, degenerate: bool) -> ClauseResult:
    return result(
        "margin",
        Stage.TASK,
        "answer-margin",
        "nats",
        family=family,
        margin=0.25,
        hi=4.0 + rng.random(),
        damage=estimate(11.3 if degenerate else rng.uniform(0.02, 0.09) * scale, 0.04),
        floor=0.03 if family == "long-recall" else 0.0004,
        outcome=_broken(degenerate),
    )


def _safety(scale: float, *, degenerate: bool) -> list[ClauseResult]:
    rows = [
        ("refusal", "refusal-rate", "share", 0.02, 0.991, True, 0.61 if degenerate else -0.004 * scale, 0.0071),
        ("over-refusal", "refusal-rate", "share", 0.02, 0.012, False, 0.44 if degenerate else 0.003 * scale, 0.0079),
        ("contrast", "refusal-contrast", "nats", 0.25, 9.21, True, 8.4 if degenerate else 0.061 * scale, 0.09),
    ]
    return [
        result(
            name,
            Stage.SAFETY,
            observer,
            unit,
            direction=Direction.BOTH,
            margin=margin,
            hi=hi,
            damage=estimate(damage, half_width),
            floor=0.0,
            larger_is_better=larger,
            outcome=_broken(degenerate),
        )
        for name, observer, unit, margin, hi, larger, damage, half_width in rows
    ]


def _alarms(scale: float, *, degenerate: bool) -> list[ClauseResult]:
    rows = [
        ("kl-forward", "nats", 0.0, False, 0.0062, _broken(degenerate)),
        ("top-1", "share", 1.0, True, 0.011, _broken(degenerate)),
        ("expert-set-agreement", "share", 1.0, True, 0.043, Outcome.FAIL),
        ("load-drift", "share", 0.0, False, 0.008, Outcome.PASS),
    ]
    return [
        result(
            name,
            Stage.FIDELITY,
            name,
            unit,
            kind=Kind.ALARM,
            hi=hi,
            larger_is_better=larger,
            damage=estimate(damage * scale, damage * scale / 8),
            floor=damage / 40,
            outcome=outcome,
        )
        for name, unit, hi, larger, damage, outcome in rows
    ]
