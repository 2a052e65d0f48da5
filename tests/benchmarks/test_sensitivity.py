"""The sensitivity table: its intervals, its promise, its three files, and a few runs of it.

The published table plants every mismatch twenty times; that takes a quarter of an hour.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sensitivity.grid import draw_trials
from benchmarks.sensitivity.markdown import render_markdown
from benchmarks.sensitivity.page import draw_power, render_page
from benchmarks.sensitivity.power import TOKENS
from benchmarks.sensitivity.table import (
    CleanRow,
    DelayRow,
    InjectionRow,
    PowerRow,
    Sensitivity,
    share,
    summarize,
)
from benchmarks.sensitivity.trials import count_clean, count_injection
from benchmarks.sensitivity.write import write


def row(name: str = "stale", *, detected: int = 4, named: int = 4, early: int = 0) -> InjectionRow:
    return InjectionRow(
        name=name,
        kind="state",
        sentence="Something <b>happens</b>.",
        runs=5,
        latent=1,
        detected=share(detected, 4),
        named=share(named, 4),
        localised=share(4, 4),
        early=early,
        seen_latent=0,
    )


def table(*rows: InjectionRow, alarms: int = 0) -> Sensitivity:
    return Sensitivity(
        command="made by a test",
        seed=0,
        versions={"torch": "0"},
        injections=rows or (row(),),
        clean=(CleanRow(scheme="mxfp4-even", steps=100, alarms=share(alarms, 100)),),
        delays=(
            DelayRow(every=2, period=4, runs=3, found=share(3, 3), mean_delay=1.5, max_delay=6, bound=7, cost=1 / 8),
        ),
        tokens=TOKENS,
        false_alarms=0.01,
        power=tuple(
            PowerRow(name=name, dtype="float32", effect=0.1, floor=0.01, power=(0.1, 0.5, 0.9, 1.0))
            for name in ("none", "stale")
        ),
        seconds=60.0,
    )


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    # Of 0 in n the upper bound is 1 - (alpha / 2)^(1 / n), of n in n the lower one is its mirror image.
    bound = 1 - 0.025 ** (1 / 20)
    assert share(0, 20).lower == 0.0 and share(0, 20).upper == pytest.approx(bound)
    assert share(20, 20).lower == pytest.approx(1 - bound) and share(20, 20).upper == 1.0
    # Clopper and Pearson (1934), as tabulated: 5 of 10.
    five = share(5, 10)
    assert five.lower == pytest.approx(0.1871, abs=5e-5) and five.upper == pytest.approx(0.8129, abs=5e-5)
    assert (share(0, 0).lower, share(0, 0).upper) == (0.0, 1.0)


def test_the_promise_is_broken_by_a_miss_a_wrong_name_and_a_false_alarm() -> None:
    assert table().keeps_its_promise()
    for broken in (row(detected=3, named=3), row(named=3), row(early=1)):
        assert not table(broken).keeps_its_promise()
    assert not table(alarms=1).keeps_its_promise()
    assert "Not always: late" in summarize(table(row(), row("late", named=3)))


def test_the_files_show_every_row_and_escape_it(tmp_path: Path) -> None:
    json_path, md_path, html_path = write(table(row(), row("other", named=2)), tmp_path)
    assert Sensitivity.from_json(json_path.read_text()) == table(row(), row("other", named=2))
    assert "| other | state | 5 | 1 |" in md_path.read_text()
    page = html_path.read_text()
    assert "<b>" not in page and "<script" not in page and "Some mismatches are missed" in page
    assert "is found at its step and named" in render_page(table())
    assert "2 of 4" in render_markdown(table(row(named=2)))


def test_curves_rise_to_the_right_and_upwards() -> None:
    drawing = draw_power(table(), "float32")
    points = [tuple(map(float, pair.split(","))) for pair in drawing.curves[1].points.split()]
    assert points == sorted(points) and [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert [curve.is_floor for curve in drawing.curves] == [True, False]


def test_draws_are_the_same_every_time() -> None:
    assert list(draw_trials("stale", 2)) == list(draw_trials("stale", 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["another-rule", "scales-not-refreshed", "router-precision"])
def test_planted_mismatches_are_found_and_named(name: str) -> None:
    found = count_injection(name, 2)
    assert found.detected.count == found.named.count == found.detected.total and found.early == 0


@pytest.mark.slow
def test_clean_steps_raise_no_alarm() -> None:
    rows = list(count_clean(14))
    assert [clean.alarms.count for clean in rows] == [0] * len(rows)
