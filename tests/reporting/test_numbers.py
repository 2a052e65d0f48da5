"""Numbers are written with the unit and precision of their clause, and hidden characters are shown."""

from __future__ import annotations

import math

import pytest

from quantaudit.core.contract import Direction, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.reporting.bit_diff import Run, mark_difference
from quantaudit.reporting.extremes import Cell, find_extremes
from quantaudit.reporting.headline import build_headlines
from quantaudit.reporting.html import render_html
from quantaudit.reporting.plaintext import clip, show_hidden
from quantaudit.reporting.rows import build_rows, margin_used
from tests.reporting.sample_clauses import estimate, result


def test_shares_are_percent_and_their_differences_points() -> None:
    damage = estimate(0.0125, 0.0025, rate=0.02)
    (row,) = build_rows((result("task", Stage.TASK, "accuracy", "share", margin=0.02, hi=0.95, damage=damage),))
    assert (row.hi, row.lo, row.difference, row.interval, row.margin) == (
        "95.00%",
        "93.75%",
        "+1.25 pts",
        "[+1.00, +1.50]",
        "2 pts",
    )


def test_precision_follows_the_margin() -> None:
    damage = estimate(0.00123, 0.001)
    fine = result("fidelity", Stage.FIDELITY, "nll", "nats", margin=0.02, hi=1.0, damage=damage)
    coarse = result("margin", Stage.TASK, "answer-margin", "nats", margin=0.25, hi=1.0, damage=damage)
    assert [row.difference for row in build_rows((fine, coarse))] == ["+0.0012 nats", "+0.001 nats"]


def test_a_rounded_zero_has_no_minus_sign() -> None:
    damage = estimate(-0.00001, 0.001)
    (row,) = build_rows((result("margin", Stage.TASK, "answer-margin", "nats", margin=0.25, hi=1.0, damage=damage),))
    assert row.difference == "+0.000 nats"


def test_infinite_bounds_are_written() -> None:
    damage = estimate(0.01, math.inf)
    (row,) = build_rows((result("margin", Stage.TASK, "answer-margin", "nats", margin=0.25, hi=1.0, damage=damage),))
    assert row.interval == "[-inf, +inf]"


def test_a_two_sided_margin_counts_both_ends() -> None:
    damage = estimate(-0.01, 0.005)
    both = result(
        "refusal", Stage.SAFETY, "rate", "share", margin=0.02, direction=Direction.BOTH, hi=0.9, damage=damage
    )
    worse = result("refusal", Stage.SAFETY, "rate", "share", margin=0.02, hi=0.9, damage=damage)
    assert margin_used(both) == 0.015 / 0.02
    assert margin_used(worse) == 0.0


def test_the_number_that_would_decide_is_said(undecided: AuditReport) -> None:
    rows = {row.name: row.would_decide for row in build_rows(undecided.clauses)}
    assert rows["task[sorting]"] == "1,240"
    assert rows["fidelity"] == "decided"
    assert rows["top-1"] == "-"


def test_undecided_without_a_number_points_to_the_reason() -> None:
    (row,) = build_rows((result("task", Stage.TASK, "accuracy", "share", hi=0.9, outcome=Outcome.UNDECIDED),))
    assert row.would_decide == "see reason"


def test_the_headlines_count_gates_margin_answers_and_bits(undecided: AuditReport) -> None:
    gates, closest, answers, bits = build_headlines(undecided)
    assert (gates.number, gates.detail) == ("18 of 20", "0 fail, 2 undecided")
    assert closest.number == "151%"
    assert closest.detail.startswith("task[two-step]: ")
    # Ten families of 400 probes lose 4 + 2 each and gain 2; five with answers start at 392 right, two at 180.
    assert answers.number == f"{100 * (5 * 388 + 2 * 176) / (5 * 392 + 2 * 180):.1f}%" == "98.8%"
    assert answers.detail == "60 lost and 20 gained, of 4,000 paired probes"
    assert bits.number == "4.25"


def test_headlines_of_an_exact_report_say_so(identical: AuditReport) -> None:
    assert build_headlines(identical)[1].number == "exact"


def test_headlines_survive_missing_numbers(sparse: AuditReport) -> None:
    assert [h.number for h in build_headlines(sparse)] == ["0 of 20", "-", "-", "4.25"]


def test_recorded_results_have_no_stored_bits(admitted: AuditReport) -> None:
    sides = {
        side: getattr(admitted, side).model_copy(update={"stored_bits_per_expert_weight": None})
        for side in ("hi", "lo")
    }
    recorded = admitted.model_copy(update=sides)
    bits = build_headlines(recorded)[3]
    assert (bits.number, bits.detail) == ("-", "recorded results: no model was opened")
    assert render_html(recorded).count("recorded results: no model was opened") == 3


def test_extremes_are_the_worst_cells(admitted: AuditReport) -> None:
    table = admitted.expert_maps[0].model_copy(update={"layers": (3,), "values": ((5.0, None, 1.0, 4.0),)})
    found = find_extremes(table)
    assert found.cells == (Cell(3, 2, 1.0), Cell(3, 3, 4.0), Cell(3, 0, 5.0))
    assert (found.num_cells, found.num_missing) == (4, 1)


def test_differing_bits_are_marked() -> None:
    hi, lo = mark_difference("0x3c6a", "0x3c80")
    assert hi == (Run("0x3c", False), Run("6a", True))
    assert lo == (Run("0x3c", False), Run("80", True))


def test_bits_of_unequal_length_differ_as_a_whole() -> None:
    assert mark_difference("0x3c", "0x3c80") == ((Run("0x3c", True),), (Run("0x3c80", True),))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eabc\u200b", "\\u202eabc\\u200b"),
        ("\u2028", "\\u2028"),
        ("\U000e0001", "\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("\x9b2J", "\\x9b2J"),
        ("plain \u00e9\u4e2d", "plain \u00e9\u4e2d"),
    ],
)
def test_hidden_characters_are_shown(text: str, shown: str) -> None:
    assert show_hidden(text) == shown


def test_text_is_cut_with_dots() -> None:
    assert [clip("abcdef", n) for n in (6, 5, 3, 0)] == ["abcdef", "ab...", "...", "..."]
