"""Estimates with their uncertainty, and the three-way decisions that are read off them.

Every difference is damage-oriented: positive means that lo is worse than hi. The caller turns the sign.
An estimate carries all that a decision needs, so a stored report can be decided again without the samples.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from quantaudit.core.serial import Frozen


class Outcome(StrEnum):
    """What one clause comes to; the verdict ADMIT / REJECT / INCONCLUSIVE is put together from these."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


class Method(StrEnum):
    """How an estimate and its interval were made."""

    CR1 = "cluster-t-cr1"  # equal clusters: G/(G-1) and t with G-1 degrees of freedom
    CR2 = "cluster-t-cr2"  # unequal clusters: bias-reduced variance, Satterthwaite degrees of freedom
    CONTRAST = "contrast-t-cr2"  # difference of two cluster means
    SCORE = "score"  # Tango's interval at the effective number of probes
    SCORE_NO_FLIPS = "score-no-flips"  # no discordant pair: the design effect is assumed, not estimated
    RATIO = "ratio-linearised"  # a ratio of means (effective sample size), by its influence on each probe
    BOOTSTRAP = "cluster-bootstrap"  # resampled clusters: tails and other statistics without a standard error
    BETTING = "betting-sequence"  # bounds that hold at every look (bounded differences)
    E_VALUE = "flip-e-value"  # bounds that hold at every look (0/1 flips)
    TOO_FEW_CLUSTERS = "too-few-clusters"  # a mean without an interval: cannot decide


class Interval(Frozen):
    """A two-sided interval.

    Attributes:
        lower: Lower bound, minus infinity if there is none.
        upper: Upper bound, infinity if there is none.
        level: Two-sided confidence level: 1 - 2 alpha, so that each bound is a one-sided 1 - alpha bound.
    """

    lower: float
    upper: float
    level: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if not self.lower <= self.upper:
            raise ValueError(f"an interval runs from lower to upper, not from {self.lower} to {self.upper}")
        return self


class Estimate(Frozen):
    """A damage-oriented difference with its clustered uncertainty.

    Attributes:
        value: The difference, in the observer's unit; positive is worse for lo.
        standard_error: Clustered standard error; infinite where it could not be estimated.
        degrees_of_freedom: Of the t quantile behind the interval; infinite for a normal one, 0 without interval.
        interval: Two-sided, level 1 - 2 alpha.
        num_probes: Paired items.
        num_clusters: Units of dependence.
        design_effect: Clustered variance over the variance of as many independent probes (1 if not estimated).
        intraclass_correlation: ANOVA estimate; below 0 when clusters differ less than chance (0 if not estimated).
        method: How it was made.
        discordant_rate: Share of pairs that differ, for 0/1 observers only; with `value` it holds both flip rates.
    """

    value: float = Field(allow_inf_nan=False)
    standard_error: float = Field(ge=0)
    degrees_of_freedom: float = Field(ge=0)
    interval: Interval
    num_probes: int = Field(ge=1)
    num_clusters: int = Field(ge=1)
    design_effect: float = Field(ge=0, allow_inf_nan=False)
    intraclass_correlation: float = Field(le=1, allow_inf_nan=False)
    method: Method
    discordant_rate: float | None = Field(default=None, ge=0, le=1)

    @property
    def effective_num_probes(self) -> float:
        """Returns how many independent probes would carry the same information."""
        return self.num_probes / self.design_effect if self.design_effect else float(self.num_probes)


class Decision(Frozen):
    """What an estimate says about one clause.

    Attributes:
        outcome: PASS, FAIL or UNDECIDED.
        is_exact: Decided by equality, not by sampling: it spends no alpha and stays out of corrections.
        is_displacement: A one-sided clause improved beyond its margin: flagged, never rewarded.
        p_admit: P-value against "the difference is at or beyond the margin"; small admits.
        p_reject: P-value against "the difference is within the margin"; small rejects.
        num_that_would_decide: Probes that would admit with power .8 if the difference stays as observed; `None`
            when decided, or when no number would (the reason says which).
        minimum_detectable_effect: Smallest margin that a harmless lo would pass with power .8 at this n, which
            is also the smallest damage told from zero with that power.
        reason: One sentence in plain words.
    """

    outcome: Outcome
    is_exact: bool = False
    is_displacement: bool = False
    p_admit: float = Field(ge=0, le=1)
    p_reject: float = Field(ge=0, le=1)
    num_that_would_decide: int | None
    minimum_detectable_effect: float = Field(ge=0)
    reason: str
