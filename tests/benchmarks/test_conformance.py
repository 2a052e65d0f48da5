"""The conformance table on small weights: a planted difference shows, intervals hold, and the three files are written.

The published table has a million weights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.conformance.__main__ import main
from benchmarks.conformance.collect import collect
from benchmarks.conformance.data import make_weights
from benchmarks.conformance.digest import count_functions, implementations, percent, rule_matrix, summarize
from benchmarks.conformance.figures import BF16, FP32, Figure, published_figures
from benchmarks.conformance.markdown import render_markdown
from benchmarks.conformance.measure import mismatch
from benchmarks.conformance.page import render_page
from benchmarks.conformance.published import NO_SIDE, half_width, hold_against
from benchmarks.conformance.readme import REPORT, format_mxfp4_table, mxfp4_table
from benchmarks.conformance.sides import Absent, Outcome, Side, catalogue_side, find_sides, reference_of
from benchmarks.conformance.table import UNSETTLED, Agreement, Conformance, Pair, Part, Unchecked
from benchmarks.conformance.write import to_json, write
from quantaudit.backends.protocol import Origin
from quantaudit.numerics import get_scheme

WEIGHTS = make_weights(256, 256, seed=1)
PLANTED = "planted:mxfp4"


def one_value_off(x: Tensor) -> Outcome:
    """Quantizes as mxfp4-even, but for one value whose code is another."""
    outcome = reference_of(x, get_scheme("mxfp4-even"))
    assert outcome.codes is not None
    codes, values = outcome.codes.clone(), outcome.values.clone()
    codes[3, 5] ^= 7
    values[3, 5] += 1
    return replace(outcome, codes=codes, values=values)


def planted() -> Side:
    even = catalogue_side("mxfp4-even")
    return replace(even, name=PLANTED, backend="planted", version="0", origin=Origin.LIBRARY, run=one_value_off)


def restated() -> Side:
    away = catalogue_side("mxfp4-even-away")
    return replace(away, name="told:mxfp4", backend="told", origin=Origin.RESTATED)


@lru_cache(maxsize=1)
def report() -> Conformance:
    absent = [Absent(name="modelopt", reason="nvidia-modelopt is not installed")]
    return collect(WEIGHTS, [planted(), restated()], absent, "made by a test")


def pair_of(pairs: tuple[Pair, ...], a: str, b: str, dtype: str) -> Pair:
    return next(pair for pair in pairs if (pair.a, pair.b, pair.dtype) == (a, b, dtype))


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_planted_value_shows_in_every_table(dtype: str) -> None:
    for pair in (
        pair_of(report().pairs, PLANTED, "mxfp4-even", dtype),
        pair_of(report().mxfp4, "mxfp4-even", PLANTED, dtype),
    ):
        assert (pair.differing.scales, pair.differing.codes, pair.differing.values) == (0, 1, 1)
        assert not pair.identical
        assert pair.num_pairs == 256 * 256 and pair.shares.values == 2.0**-16
    text = render_markdown(report())
    assert "| mxfp4 | mxfp4-even | 0 / 0.00153 / 0.00153 | 0 / 0.00153 / 0.00153 |" in text
    assert "0 / 0.00153 / 0.00153" in render_page(report())


def test_equal_quantizers_are_identical() -> None:
    pair = pair_of(report().pairs, "told:mxfp4", "mxfp4-even-away", BF16)
    assert pair.identical and pair.differing.values == 0
    # the planted one differs from the catalogue's mxfp4-even, so it is a function of its own beside the restated one
    assert count_functions(report()) == 2


def test_ties_part_bf16_and_scale_rules_part_both() -> None:
    ties = pair_of(report().mxfp4, "mxfp4-even", "mxfp4-even-away", BF16)
    assert ties.differing.scales == 0 and ties.differing.values > 0
    rules = pair_of(report().mxfp4, "mxfp4-floor", "mxfp4-ceil", FP32)
    assert rules.shares.scales is not None and rules.shares.scales > 0.9


def test_restated_rules_are_labelled() -> None:
    assert pair_of(report().pairs, "told:mxfp4", "mxfp4-even-away", FP32).restated
    assert not pair_of(report().pairs, PLANTED, "mxfp4-even", FP32).restated
    assert "told:mxfp4 (restated)" in mxfp4_table(report())


def test_what_is_not_installed_is_listed_as_not_checked() -> None:
    assert report().unchecked == (Unchecked(name="modelopt", reason="nvidia-modelopt is not installed"),)
    assert "| modelopt:mxfp4 | rceil | toward-zero | not checked | not checked |" in mxfp4_table(report())
    rows = report().compared(Agreement.NOT_CHECKED)
    assert {row.remark for row in rows} >= {NO_SIDE.format(name) for name in ("torchao 0.18.0", "modelopt 0.47.0")}
    sides, absent = find_sides(["no-such-backend"])
    assert sides == () and absent[0].name == "no-such-backend"


def test_signed_zeros_are_equal_values_and_other_forms_are_not_compared() -> None:
    a = reference_of(WEIGHTS, get_scheme("mxfp4-even"))
    b = replace(a, values=torch.where(a.values == 0, -a.values, a.values), scales=None)
    values = mismatch(a, b, Part.VALUES)
    assert values is not None and not values.any()
    assert mismatch(a, b, Part.SCALES) is None
    assert mismatch(a, reference_of(WEIGHTS, get_scheme("int4-g32-div7")), Part.CODES) is None


def test_an_interval_is_wider_where_rows_differ_as_a_whole() -> None:
    clustered, scattered = torch.zeros(64, 64, dtype=torch.bool), torch.zeros(64, 64, dtype=torch.bool)
    clustered[:16] = True
    scattered[:, :16] = True
    assert half_width(clustered, 64) > 0.2
    # every row has the same share, so only the rare-event term is left: -ln(0.005) / 4096
    assert half_width(scattered, 64) == pytest.approx(5.298317366548036 / 4096, rel=1e-12)


@pytest.mark.parametrize(
    ("share", "unit", "verdict"),
    [(0.0, 0.0, Agreement.DIFFERS), (0.0, 1e-6, Agreement.AGREES), (0.01, 1e-4, Agreement.DIFFERS)],
)
def test_one_difference_contradicts_equality_but_not_a_count_of_none(
    share: float, unit: float, verdict: Agreement
) -> None:
    figure = Figure("test", PLANTED, "mxfp4-even", FP32, Part.VALUES, share, unit)
    outcomes = {
        (PLANTED, FP32): one_value_off(WEIGHTS),
        ("mxfp4-even", FP32): reference_of(WEIGHTS, get_scheme("mxfp4-even")),
    }
    (row,) = hold_against([figure], outcomes, FP32, {})
    assert row.agreement is verdict and row.found == 2.0**-16
    assert (row.remark == UNSETTLED) == (verdict is Agreement.DIFFERS)


def test_one_scale_for_a_tensor_has_no_interval() -> None:
    figure = Figure("test", "fp8-tensor", "fp8-tensor-ue8m0", FP32, Part.VALUES, 0.5, 1e-2)
    names = (figure.a, figure.b)
    (row,) = hold_against([figure], {(n, FP32): reference_of(WEIGHTS, get_scheme(n)) for n in names}, FP32, {})
    assert row.agreement is Agreement.NO_INTERVAL and row.half_width is None


@pytest.mark.parametrize(("version", "verdict"), [("0.18.0", Agreement.AGREES), ("0.19.0", Agreement.NOT_CHECKED)])
def test_a_figure_holds_for_the_version_it_names(version: str, verdict: Agreement) -> None:
    even = reference_of(WEIGHTS, get_scheme("mxfp4-even"))
    figure = Figure("test", "torchao:mxfp4-even", "mxfp4-even", FP32, Part.VALUES, 0.0, 0.0)
    outcomes = {(name, FP32): even for name in (figure.a, figure.b)}
    assert hold_against([figure], outcomes, FP32, {"torchao": version})[0].agreement is verdict


def test_figures_are_shares_of_known_sides() -> None:
    figures = list(published_figures())
    assert len({figure[:5] for figure in figures}) == len(figures)
    assert all(0 <= figure.share <= 1 and "{" not in figure.a + figure.b for figure in figures)


def test_the_matrix_is_symmetric_and_the_page_asks_for_nothing() -> None:
    matrix = rule_matrix(report())
    assert len(matrix) == 12 * 11 and all(matrix[a, b] == matrix[b, a] for a, b in matrix)
    page = render_page(report())
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert "prefers-color-scheme: dark" in page


def test_the_files_agree_and_the_json_round_trips(tmp_path: Path) -> None:
    paths = write(report(), tmp_path)
    assert [path.name for path in paths] == ["conformance.json", "conformance.md", "conformance.html"]
    assert Conformance.from_json(paths[0].read_text()) == report()
    assert set(json.loads(to_json(report()))["pairs"][0]) >= {"a", "b", "scheme", "backend", "version", "differing"}
    assert summarize(report()) in paths[1].read_text()
    assert format_mxfp4_table(paths[0]) == mxfp4_table(report())


def test_the_committed_report_has_a_short_table() -> None:
    committed = Conformance.from_json(REPORT.read_text(encoding="utf-8"))
    assert committed.published and not committed.unsettled()
    table = format_mxfp4_table()
    assert 4 <= len(table.splitlines()) - 2 <= 12
    own = [row for row in implementations(committed) if "torchao:mxfp4-even" in row.names]
    assert own[0].pair is not None and own[0].pair.identical


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (0.0, "0"), (1.0, "100"), (1e-6, "<0.001"), (0.9998, "99.98")]
)
def test_percent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_a_wrong_number_of_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "100"])
    assert "a multiple of 128" in capsys.readouterr().err
