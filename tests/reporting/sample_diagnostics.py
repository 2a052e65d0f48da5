"""What the sample reports show beside their clauses: diagnostics, series, a ladder, and answers that changed."""

from __future__ import annotations

import math

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Flip, Ladder, Rung, Series, Topic
from tests.reporting.sample_clauses import TASKS, estimate

NUM_FLIPS = 45


def _diagnostic(
    name: str,
    topic: Topic,
    title: str,
    unit: str,
    better: bool | None,
    *,
    sides: tuple[float, float] | None = None,
    value: float | None,
    bounds: tuple[float, float] | None = None,
    floor: float | None = None,
    num: int,
    note: str = "",
) -> Diagnostic:
    hi, lo = (None, None) if sides is None else sides
    return Diagnostic(
        name=name,
        topic=topic,
        title=title,
        unit=unit,
        larger_is_better=better,
        hi=hi,
        lo=lo,
        value=value,
        interval=None if bounds is None else Interval(lower=bounds[0], upper=bounds[1], level=0.9),
        floor=floor,
        num_items=num,
        note=note,
    )


def diagnostics() -> tuple[Diagnostic, ...]:
    """Returns a few numbers of every topic; two of them are within their floor."""
    kl = _diagnostic("kl-forward", Topic.TOKENS, "KL divergence, forward", "nats", False,
                     value=0.0062, bounds=(0.0051, 0.0074), floor=2.1e-7, num=19_240)  # fmt: skip
    shift = _diagnostic("delta-p-mean", Topic.TOKENS, "Change of the right token's probability, mean", "share", True,
                        sides=(0.871, 0.8705), value=-0.0005, bounds=(-0.0011, 0.0001), floor=0.0009, num=19_240,
                        note="Symmetric percentiles are noise; a shifted mean is loss.")  # fmt: skip
    ece = _diagnostic("ece", Topic.CALIBRATION, "Expected calibration error", "share", False,
                      sides=(0.021, 0.034), value=0.013, bounds=(0.004, 0.022), floor=0.0, num=4000)  # fmt: skip
    lost = _diagnostic("answers-lost", Topic.ANSWERS, "Right to wrong", "share", False,
                       value=0.006, floor=0.0, num=4000)  # fmt: skip
    agreement = _diagnostic("set-agreement", Topic.ROUTING, "Expert-set agreement", "share", True,
                            value=0.9621, bounds=(0.9588, 0.9655), floor=0.9998, num=96_200)  # fmt: skip
    dead = _diagnostic("dead-experts", Topic.ROUTING, "Experts without a token", "experts", False,
                       sides=(3.0, 3.0), value=0.0, floor=0.0, num=320)  # fmt: skip
    sqnr = _diagnostic("sqnr", Topic.WEIGHTS, "SQNR of the experts", "dB", True, value=19.2, num=960)
    same = _diagnostic("identical", Topic.GENERATION, "Identical continuations", "share", True,
                       value=0.883, bounds=(0.861, 0.904), floor=0.999, num=400)  # fmt: skip
    cosine = _diagnostic("refusal-direction", Topic.SAFETY, "Cosine of the refusal directions", "cosine", True,
                         value=None, num=0, note="Not measured: fewer than 30 requests.")  # fmt: skip
    return (kl, shift, ece, lost, agreement, dead, sqnr, same, cosine)


def series() -> tuple[Series, ...]:
    """Returns series along numbers and along names, one with a gap."""
    return (_by_position(), _by_family(), *_by_margin(), _survival())


def _by_position() -> Series:
    return Series(
        name="kl-by-position",
        topic=Topic.TOKENS,
        title="KL by position",
        axis="answer token",
        unit="nats",
        larger_is_better=False,
        labels=tuple(str(i) for i in range(1, 9)),
        values=(0.011, 0.008, 0.0071, 0.0052, None, 0.0049, 0.0047, 0.0046),
        floor=(2e-7,) * 8,
        counts=(4000, 3900, 3700, 3000, 0, 1200, 800, 400),
    )


def _by_family() -> Series:
    return Series(
        name="kl-by-family",
        topic=Topic.TOKENS,
        title="KL by family",
        axis="family",
        unit="nats",
        larger_is_better=False,
        labels=TASKS,
        values=tuple(0.002 * (i + 1) for i in range(len(TASKS))),
        floor=(1e-6,) * 5 + (0.02, 1e-6),
        counts=(400,) * len(TASKS),
    )


def _by_margin() -> tuple[Series, Series]:
    bins = ("below 0.5", "0.5 to 1", "1 to 2", "2 to 4", "above 4")
    agreement = Series(
        name="agreement-by-margin",
        topic=Topic.TOKENS,
        title="Agreement by margin of hi",
        axis="margin, nats",
        unit="share",
        larger_is_better=True,
        labels=bins,
        values=(0.71, 0.88, 0.953, 0.992, 0.9999),
        floor=(0.998, 0.9999, 1.0, 1.0, 1.0),
        counts=(812, 930, 1800, 4100, 11_598),
    )
    flips = Series(
        name="flip-by-routing-margin",
        topic=Topic.ROUTING,
        title="Probability that a choice flips",
        axis="routing margin",
        unit="share",
        larger_is_better=False,
        labels=bins,
        values=(0.31, 0.12, 0.04, 0.006, 0.0),
        floor=(0.002, 0.0, 0.0, 0.0, 0.0),
    )
    return agreement, flips


def _survival() -> Series:
    return Series(
        name="survival",
        topic=Topic.GENERATION,
        title="Continuations still identical",
        axis="token",
        unit="share",
        larger_is_better=True,
        labels=tuple(str(i) for i in range(1, 25)),
        values=tuple(math.exp(-0.005 * i) for i in range(24)),
        floor=(1.0,) * 24,
    )


def ladder() -> Ladder:
    """Returns five rungs whose damage spans four orders of magnitude."""
    rungs = [
        ("int8-g32", 8, 0.0004, 0.0),
        ("int6-g32", 6, 0.0021, 0.0005),
        ("mxfp4-even", 4, 0.014, 0.006),
        ("int3-g32", 3, 0.31, 0.09),
        ("int2-g32", 2, 7.9, 0.61),
    ]
    return Ladder(
        rungs=tuple(
            Rung(scheme=s, bits=b, nll=estimate(nll, nll / 5), accuracy=estimate(lost, 0.004, rate=lost))
            for s, b, nll, lost in rungs
        ),
        num_probes=1000,
        is_monotone=True,
        p_value=0.0004,
        reason="Damage grows on every step from 8 bits to 2.",
    )


def flips() -> tuple[Flip, ...]:
    """Returns answers that changed in three families; those of the restricted one are redacted."""
    changes = ("right to wrong", "wrong to right", "wrong to another wrong")
    families = ("sorting", "facts", "wrapped")
    return tuple(_flip(i, families[i % 3], changes[(i // 3) % 3]) for i in range(NUM_FLIPS))


def _flip(index: int, family: str, change: str) -> Flip:
    is_redacted = family == "wrapped"
    texts = (f"sort: {90_000 - index} =", "right", "right", f"wrong {index}")
    prompt, expected, hi, lo = ("[redacted]",) * 4 if is_redacted else texts
    return Flip(
        probe_id=f"{index:016x}",
        family=family,
        cluster=f"{family}/{index % 7}",
        prompt=prompt,
        expected=expected,
        hi_response=hi,
        lo_response=lo,
        change=change,
        is_redacted=is_redacted,
    )
