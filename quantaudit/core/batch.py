"""What an engine is given: token sequences, each with the point where its scored response starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence of token ids, start and end tokens included.

    Attributes:
        tokens: At least two ids.
        scored_from: Index of the first scored token; every token from there on is predicted and scored.
    """

    tokens: tuple[int, ...]
    scored_from: int

    @property
    def num_scored(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens) - self.scored_from
