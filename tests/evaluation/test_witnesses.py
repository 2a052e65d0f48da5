"""Witnesses: lost answers first, then lost margin, both answers as decoded, and nothing restricted in plain text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from quantaudit.core.batch import Sequence
from quantaudit.core.engine import Intervention, Trace
from quantaudit.core.report import Witness
from quantaudit.core.site import Point, Site
from quantaudit.evaluation.table import Table
from quantaudit.evaluation.witnesses import find_witnesses
from quantaudit.probes.tokenizer import BOS, EOS, decode, encode
from tests.evaluation.synthetic import PROBES, at, good_values, harmed, same, table_of


class Echo:
    """An engine that answers every prompt with the prompt and its own name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def forward(
        self,
        batch: list[Sequence],
        *,
        observe: frozenset[Point] = frozenset(),
        intervene: Mapping[Site, Intervention] | None = None,
    ) -> Trace:
        raise AssertionError("witnesses are decoded, not scored again")

    def decode(self, prompts: list[tuple[int, ...]], *, max_new: int) -> list[tuple[int, ...]]:
        assert all(prompt[0] == BOS for prompt in prompts)
        return [(*encode(f"{decode(prompt)} {self.name}"), EOS) for prompt in prompts]

    def score_continuations(
        self, prompts: list[tuple[int, ...]], continuations: list[list[tuple[int, ...]]]
    ) -> list[tuple[float, ...]]:
        raise AssertionError("witnesses are decoded, not scored again")

    def close(self) -> None:
        """Frees nothing."""


def find(table: Table, *, limit: int = 12, show: bool = False) -> tuple[Witness, ...]:
    """Finds witnesses between two echoes."""
    return find_witnesses(PROBES, table, Echo("hi"), Echo("lo"), limit=limit, show_restricted=show)


def table_with_two_losses() -> Table:
    """Returns a table in which one answer is lost by little, and another loses more margin without being lost."""
    hi = good_values()
    lo = {name: values.copy() for name, values in hi.items()}
    lost, weaker = at("words")[5], at("sums")[7]
    lo["accuracy"][lost], lo["answer-margin"][lost] = 0.0, hi["answer-margin"][lost] - 4.5
    lo["answer-margin"][weaker] -= 30
    lo["answer-margin"][at("sums")[9]] += 2
    return table_of(hi, lo)


def test_lost_answers_come_before_larger_losses_of_margin() -> None:
    found = find(table_with_two_losses())
    assert [w.prompt for w in found] == ["words 5?", "sums 7?", "sums 9?"]
    assert [w.change for w in found] == ["right to wrong", "margin only", "margin only"]
    assert [round(w.damage, 9) for w in found] == [4.5, 30.0, -2.0]
    assert found[0].damage == found[0].hi_margin - found[0].lo_margin
    assert (found[0].hi_response, found[0].lo_response) == ("words 5? hi", "words 5? lo")
    assert (found[0].expected, found[0].family, found[0].cluster) == ("005", "words", "c5")


def test_there_are_no_more_than_asked_for_and_none_without_a_difference() -> None:
    assert len(find(same(), limit=4)) == 4
    good = good_values()
    assert find(table_of(good, good)) == ()


def test_restricted_text_is_redacted_in_every_field() -> None:
    table = harmed("answer-margin", at("plain")[3:5], -9.0)
    hidden, shown = find(table, limit=2), find(table, limit=2, show=True)
    assert all(w.is_redacted and not s.is_redacted for w, s in zip(hidden, shown, strict=True))
    for w, s in zip(hidden, shown, strict=True):
        assert s.prompt in ("plain 3?", "plain 4?") and s.expected == "no."
        assert {w.cluster, w.prompt, w.expected, w.hi_response, w.lo_response} == {"[redacted]"}
        for secret in (s.prompt, s.expected, s.hi_response, s.lo_response, s.cluster):
            assert secret not in w.to_json()
        assert (w.probe_id, w.damage, w.change) == (s.probe_id, s.damage, s.change)


def test_benign_text_is_shown() -> None:
    (found,) = find(harmed("answer-margin", at("benign")[:1], -9.0), limit=1)
    assert not found.is_redacted and found.prompt == "benign 0?"


@pytest.mark.parametrize(
    ("hi_hit", "lo_hit", "change"),
    [(1, 0, "right to wrong"), (0, 1, "wrong to right"), (0, 0, "wrong to another wrong"), (1, 1, "margin only")],
)
def test_changes_are_named(hi_hit: float, lo_hit: float, change: str) -> None:
    hi = good_values()
    lo = {name: values.copy() for name, values in hi.items()}
    hi["accuracy"][0], lo["accuracy"][0] = hi_hit, lo_hit
    lo["answer-margin"][0] -= 1
    (found,) = find(table_of(hi, lo), limit=1)
    assert found.change == change


def test_a_margin_that_is_not_a_number_is_the_worst() -> None:
    hi = good_values()
    lo = {name: values.copy() for name, values in hi.items()}
    lo["answer-margin"][:3] -= [1.0, np.nan, 2.0]
    assert [w.prompt for w in find(table_of(hi, lo))] == ["sums 1?", "sums 2?", "sums 0?"]
