"""Greedy continuations of hi and lo, token by token: where they part, whether they end, whether they loop.

The first token that differs is an event at its place. Continuations that never differ are censored at their length:
whether they would have parted had there been more to write is not known. The share of pairs that are still together
after t tokens is then Kaplan and Meier's product

    S(t) = prod_{s <= t} (1 - d_s / n_s),

with d_s the pairs that part at token s and n_s those that reach it together. It uses short pairs as far as they go,
where the plain share of identical continuations would count them as if they could never part.

Source: Kaplan and Meier 1958.
Legend: C continuations or pairs of them, T tokens up to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = tuple[int, ...]

# A loop: one n-gram of at most so many tokens, so many times in a row, over at least so many tokens. An answer of this
# world has at most ten tokens and none of them is made that way, while a model that is stuck fills any budget.
LOOP_NGRAM, LOOP_TIMES, LOOP_TOKENS = 8, 3, 8


class Parting(NamedTuple):
    """Where a pair parts.

    Attributes:
        step: The first token that differs, counted from 1; for a pair that never parts, how many it has in common.
        is_parted: Whether it parts; if not, it is censored at `step`.
    """

    step: int
    is_parted: bool


class Survival(NamedTuple):
    """The share of pairs still together, token by token.

    Attributes:
        together_T: S(t) for t = 1, 2, ...
        at_risk_T: Pairs that reach token t together.
    """

    together_T: NDArray[np.float64]
    at_risk_T: NDArray[np.int64]


def find_parting(hi: Tokens, lo: Tokens) -> Parting:
    """Returns where two continuations part; one that goes on where the other has ended parts there."""
    for step, (a, b) in enumerate(zip(hi, lo, strict=False), start=1):
        if a != b:
            return Parting(step, True)
    shared = min(len(hi), len(lo))
    return Parting(shared, False) if len(hi) == len(lo) else Parting(shared + 1, True)


def estimate_survival(partings: Sequence[Parting]) -> Survival:
    """Returns Kaplan and Meier's estimate; a pair censored at a token was together there.

    Args:
        partings: At least one.
    """
    step_C = np.array([p.step for p in partings], dtype=np.int64)
    is_parted_C = np.array([p.is_parted for p in partings], dtype=bool)
    step_T = np.arange(1, int(step_C.max()) + 1)
    at_risk_T = (step_C >= step_T[:, None]).sum(1)
    parted_T = ((step_C == step_T[:, None]) & is_parted_C).sum(1)
    return Survival(np.cumprod(1.0 - parted_T / at_risk_T), at_risk_T)


def median_step(survival: Survival) -> int | None:
    """Returns the first token by which at least half of the pairs have parted; `None` if more stay together."""
    reached = np.flatnonzero(survival.together_T <= 0.5)
    return int(reached[0]) + 1 if len(reached) else None


def has_ended(tokens: Tokens, eos: int) -> bool:
    """Tells whether a continuation reached its end token within what was generated."""
    return bool(tokens) and tokens[-1] == eos


def is_looping(tokens: Tokens) -> bool:
    """Tells whether some n-gram of at most 8 tokens stands three times in a row or more, over 8 tokens or more."""
    return any(_longest_period(tokens, size) >= max(LOOP_TIMES * size, LOOP_TOKENS) for size in _sizes(tokens))


def _sizes(tokens: Tokens) -> range:
    return range(1, min(LOOP_NGRAM, len(tokens) // LOOP_TIMES) + 1)


def _longest_period(tokens: Tokens, size: int) -> int:
    """Returns the length of the longest stretch in which every token equals the one `size` tokens before it."""
    longest = run = 0
    for a, b in zip(tokens, tokens[size:], strict=False):
        run = run + 1 if a == b else 0
        longest = max(longest, run)
    return longest + size if longest else 0
