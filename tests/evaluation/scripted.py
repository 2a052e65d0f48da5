"""Engines that write what a script says: right answers, but for some probes, and scores made of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantaudit.core.batch import Sequence
from quantaudit.core.engine import Intervention, Trace
from quantaudit.core.probe import Probe, ProbeSet
from quantaudit.core.site import Point, Site
from quantaudit.evaluation.measure import Engines
from quantaudit.probes.tokenizer import BOS, EOS, decode, encode
from tests.evaluation.synthetic import PROBES

Tokens = tuple[int, ...]


def right(probe: Probe) -> Tokens:
    """Returns the right answer with its end."""
    return (*encode(probe.response), EOS)


@dataclass(slots=True, kw_only=True)
class Scripted:
    """Writes the right answer to every prompt but those in `script`, and counts what it is asked.

    Attributes:
        script: What is written instead, by prompt.
        bonus: Added to ln p of every continuation that starts with "no".
        asked: Sizes of the batches it was given.
    """

    script: Mapping[str, Tokens] = field(default_factory=dict)
    bonus: float = 0.0
    asked: list[int] = field(default_factory=list)
    probes: ProbeSet = PROBES

    def forward(
        self,
        batch: list[Sequence],
        *,
        observe: frozenset[Point] = frozenset(),
        intervene: Mapping[Site, Intervention] | None = None,
    ) -> Trace:
        raise AssertionError("nothing is teacher-forced here")

    def decode(self, prompts: list[Tokens], *, max_new: int) -> list[Tokens]:
        self.asked.append(len(prompts))
        by_prompt = {p.prompt: right(p) for p in self.probes.probes} | dict(self.script)
        assert all(prompt[0] == BOS for prompt in prompts)
        return [by_prompt[decode(prompt)][:max_new] for prompt in prompts]

    def score_continuations(self, prompts: list[Tokens], continuations: list[list[Tokens]]) -> list[tuple[float, ...]]:
        self.asked.append(len(prompts))
        return [tuple(self._score(tokens) for tokens in some) for some in continuations]

    def _score(self, tokens: Tokens) -> float:
        return -float(len(tokens)) + self.bonus * decode(tokens).startswith("no")

    def close(self) -> None:
        """Frees nothing."""


def engines(hi: Scripted, lo: Scripted) -> Engines:
    """Returns engines whose identity control is never asked."""
    return Engines(hi=hi, lo=lo, identity=hi)
