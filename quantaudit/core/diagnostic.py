"""What an audit shows beside its clauses: single numbers, numbers along an axis, and the ladder of bit widths.

None of it decides. Every number stands beside its floor, what hi shows against itself under another batch size,
padding and thread count: below it nothing was seen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from quantaudit.core.decision import Estimate, Interval
from quantaudit.core.serial import Frozen


class Topic(StrEnum):
    """What a diagnostic is about; reports group by it."""

    TOKENS = "tokens"  # distributions and likelihoods at the answer tokens
    CALIBRATION = "calibration"  # whether confidence still means what it meant
    ANSWERS = "answers"  # right and wrong, by direction
    ROUTING = "routing"  # who computes, and with what weight
    WEIGHTS = "weights"  # error of the stored weights
    GENERATION = "generation"  # greedy continuations
    SAFETY = "safety"  # how requests are refused


class Diagnostic(Frozen):
    """One number about the pair.

    Attributes:
        name: Unique in a report, such as "delta-p-rms".
        topic: What it is about.
        title: A few words for tables.
        unit: Unit of all its numbers.
        larger_is_better: Which way it points; `None` where neither way is better.
        hi: The metric of hi alone, where there is such a thing.
        lo: The metric of lo alone.
        value: The paired number, in its own sign: what the title says.
        interval: Its clustered interval, where one was computed.
        floor: The same number of hi against itself.
        num_items: Tokens, probes or experts behind it.
        note: One sentence where the number needs one.
    """

    name: str
    topic: Topic
    title: str
    unit: str
    larger_is_better: bool | None
    hi: float | None = None
    lo: float | None = None
    value: float | None
    interval: Interval | None = None
    floor: float | None = None
    num_items: int = Field(ge=0)
    note: str = ""


class Series(Frozen):
    """One metric along an axis: by position, by family, by margin bin, by depth.

    Attributes:
        name: Unique in a report, such as "kl-by-position".
        topic: What it is about.
        title: A few words for the chart.
        axis: What the labels are, such as "answer token".
        unit: Unit of values and floor.
        larger_is_better: Which way it points; `None` where neither way is better.
        labels: Where along the axis, in order.
        values: The metric there; `None` where nothing was measured.
        floor: The same of hi against itself; empty where there is none.
        counts: Items behind each value; empty where that means nothing.
    """

    name: str
    topic: Topic
    title: str
    axis: str
    unit: str
    larger_is_better: bool | None
    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    floor: tuple[float | None, ...] = ()
    counts: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        for what, column in (("values", self.values), ("floor", self.floor), ("counts", self.counts)):
            if len(column) != len(self.labels) and (column or what == "values"):
                raise ValueError(f"series {self.name!r} has {len(self.labels)} labels and {len(column)} {what}")
        return self


class Rung(Frozen):
    """One step of the ladder of bit widths: hi with its experts rounded to nearest in one scheme.

    Attributes:
        scheme: Name of the weight scheme.
        bits: Element bits of the scheme.
        nll: Mean loss of likelihood, nats per answer token; positive is worse.
        accuracy: Mean loss of accuracy over the probes of the ladder, share; positive is worse.
    """

    scheme: str
    bits: int
    nll: Estimate
    accuracy: Estimate


class Ladder(Frozen):
    """Dose and response: the same probes under fewer and fewer bits.

    Attributes:
        rungs: By descending bits.
        num_probes: Probes behind every rung.
        is_monotone: Whether fewer bits never came out significantly better.
        p_value: Of the hypothesis that damage does not fall as bits fall (smallest adjacent comparison, Holm).
        reason: One sentence.
    """

    rungs: tuple[Rung, ...]
    num_probes: int
    is_monotone: bool
    p_value: float = Field(ge=0, le=1)
    reason: str


class Flip(Frozen):
    """One probe whose answer changed, with both answers; text of restricted probes is redacted unless asked for.

    Attributes:
        change: "right to wrong", "wrong to right" or "wrong to another wrong".
    """

    probe_id: str
    family: str
    cluster: str
    prompt: str
    expected: str
    hi_response: str
    lo_response: str
    change: str
    is_redacted: bool
