"""The catalogue of single numbers about the answer tokens.

"Expected" importance ratios are expectations under hi over the whole vocabulary; "realised" ones are taken at the
tokens of the right response. The two are different quantities and never share a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantaudit.observers.token_sums import (
    delta_p,
    expected_effective_size,
    realised_effective_size,
    realised_extreme,
    realised_k2,
    realised_k3,
    root_mean_square,
)
from quantaudit.observers.token_view import Column, TokenView

Read = Callable[[TokenView], float]
Columns = Callable[[TokenView], Column]

_REALISED = "At the tokens of the right response, which hi did not sample."
_EXPECTED = "Expectation under hi over the whole vocabulary, without sampling noise."


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNumber:
    """A number of all answer tokens.

    Attributes:
        column: The column whose mean it is, if it is one: then it gets an interval.
        read: How it is read off; the mean of `column` by default.
        hi: The same of hi alone, where there is such a thing.
        lo: The same of lo alone.
    """

    name: str
    title: str
    unit: str
    larger_is_better: bool | None
    column: Columns | None = None
    read: Read | None = None
    hi: Columns | None = None
    lo: Columns | None = None
    note: str = ""

    def read_off(self, view: TokenView) -> float:
        """Returns the number."""
        if self.read is not None:
            return self.read(view)
        assert self.column is not None, "a number is read, or is the mean of a column"
        return float(self.column(view).mean())


TOKEN_NUMBERS = (
    TokenNumber(
        name="delta-p-mean",
        title="Change in probability of the right token",
        unit="probability",
        larger_is_better=True,
        column=delta_p,
        hi=lambda v: v.hi_p_M,
        lo=lambda v: v.lo_p_M,
    ),
    TokenNumber(
        name="delta-p-rms",
        title="Same, root mean square",
        unit="probability",
        larger_is_better=False,
        read=lambda v: root_mean_square(delta_p(v)),
    ),
    TokenNumber(
        name="delta-p-max",
        title="Same, largest either way",
        unit="probability",
        larger_is_better=False,
        read=lambda v: float(np.abs(delta_p(v)).max()),
    ),
    TokenNumber(
        name="delta-logprob-max",
        title="Largest change in ln p of the right token",
        unit="nats",
        larger_is_better=False,
        read=lambda v: float(np.abs(v.log_ratio_M).max()),
    ),
    TokenNumber(
        name="kl-per-token",
        title="KL(hi || lo)",
        unit="nats/token",
        larger_is_better=False,
        column=lambda v: v.kl_M,
    ),
    TokenNumber(
        name="kl-max",
        title="Largest KL(hi || lo) at one token",
        unit="nats",
        larger_is_better=False,
        read=lambda v: float(v.kl_M.max()),
    ),
    TokenNumber(
        name="js-per-token",
        title="Jensen-Shannon divergence",
        unit="nats/token",
        larger_is_better=False,
        column=lambda v: v.js_M,
    ),
    TokenNumber(
        name="same-top",
        title="Same likeliest token",
        unit="share of tokens",
        larger_is_better=True,
        column=lambda v: v.same_top_M,
    ),
    TokenNumber(
        name="top-5-shared",
        title="Of hi's five likeliest, among lo's five",
        unit="share",
        larger_is_better=True,
        column=lambda v: v.overlap_M,
    ),
    TokenNumber(
        name="collision",
        title="One sample of each agree",
        unit="probability",
        larger_is_better=None,
        column=lambda v: v.collision_M,
        hi=lambda v: v.hi_collision_M,
        lo=lambda v: v.lo_collision_M,
        note="Compare with hi, how often two samples of hi agree, not with 1.",
    ),
    TokenNumber(
        name="importance-k2-expected",
        title="Importance ratio, E[(ln r)^2 / 2]",
        unit="nats^2",
        larger_is_better=False,
        column=lambda v: v.k2_M,
        note=_EXPECTED,
    ),
    TokenNumber(
        name="importance-k3-expected",
        title="Importance ratio, E[r - 1 - ln r]",
        unit="nats",
        larger_is_better=False,
        column=lambda v: v.k3_M,
        note=f"{_EXPECTED} Equal to KL(hi || lo), which is E[k1] as well.",
    ),
    TokenNumber(
        name="importance-extreme-expected",
        title="Importance ratio beyond 2 either way",
        unit="probability",
        larger_is_better=False,
        column=lambda v: v.extreme_M,
        note=_EXPECTED,
    ),
    TokenNumber(
        name="importance-ess-expected",
        title="Effective sample size, 1 / E[r^2]",
        unit="share",
        larger_is_better=True,
        read=expected_effective_size,
        note=_EXPECTED,
    ),
    TokenNumber(
        name="importance-k1-realised",
        title="Importance ratio, -ln r",
        unit="nats",
        larger_is_better=None,
        column=lambda v: -v.log_ratio_M,
        note=f"{_REALISED} It is lo's loss of log-likelihood per token.",
    ),
    TokenNumber(
        name="importance-k2-realised",
        title="Importance ratio, (ln r)^2 / 2",
        unit="nats^2",
        larger_is_better=False,
        column=realised_k2,
        note=_REALISED,
    ),
    TokenNumber(
        name="importance-k3-realised",
        title="Importance ratio, r - 1 - ln r",
        unit="nats",
        larger_is_better=False,
        column=realised_k3,
        note=_REALISED,
    ),
    TokenNumber(
        name="importance-extreme-realised",
        title="Right tokens with a ratio beyond 2 either way",
        unit="share of tokens",
        larger_is_better=False,
        column=realised_extreme,
        note=_REALISED,
    ),
    TokenNumber(
        name="importance-ess-realised",
        title="Effective sample size, (sum r)^2 / (n sum r^2)",
        unit="share",
        larger_is_better=True,
        read=realised_effective_size,
        note=_REALISED,
    ),
)
