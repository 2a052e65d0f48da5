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
from benchmarks.conformance.digest import count_functions, families, implementations, percent, rule_matrix, summarize
from benchmarks.conformance.families import MXFP4, family_of, family_schemes, yardstick
from benchmarks.conformance.figures import BF16, FP32, Figure, published_figures
from benchmarks.conformance.markdown import render_markdown
from benchmarks.conformance.measure import mismatch
from benchmarks.conformance.observe import Draws, Observed, observe
from benchmarks.conformance.page import render_page
from benchmarks.conformance.published import NO_SIDE, half_width, hold_against
from benchmarks.conformance.readme import REPORT, count_in_words, format_mxfp4_table, mxfp4_table
from benchmarks.conformance.sides import Absent, Outcome, Side, catalogue_side, find_sides, reference_of
from benchmarks.conformance.table import UNSETTLED, Agreement, Conformance, Pair, Part, Unchecked
from benchmarks.conformance.write import to_json, write
from quantaudit.backends.protocol import Origin
from quantaudit.numerics import get_scheme

WEIGHTS = make_weights(256, 256, seed=1)
FEW = Draws(256, 256, 2, 3)
README = Path(__file__).parents[2] / "README.md"
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
    return collect([planted(), restated()], absent, "made by a test", FEW)


def pair_of(pairs: tuple[Pair, ...], a: str, b: str, dtype: str) -> Pair:
    return next(pair for pair in pairs if (pair.a, pair.b, pair.dtype) == (a, b, dtype))


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_planted_value_shows_in_every_table(dtype: str) -> None:
    for pair in (
        pair_of(report().pairs, PLANTED, "mxfp4-even", dtype),
        pair_of(report().mutual, "mxfp4-even", PLANTED, dtype),
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
    ties = pair_of(report().mutual, "mxfp4-even", "mxfp4-even-away", BF16)
    assert ties.differing.scales == 0 and ties.differing.values > 0
    rules = pair_of(report().mutual, "mxfp4-floor", "mxfp4-ceil", FP32)
    assert rules.shares.scales is not None and rules.shares.scales > 0.9


def test_restated_rules_are_labelled() -> None:
    assert pair_of(report().pairs, "told:mxfp4", "mxfp4-even-away", FP32).restated
    assert not pair_of(report().pairs, PLANTED, "mxfp4-even", FP32).restated
    assert "*mxfp4*" in mxfp4_table(report()) and f"`{PLANTED}`" in mxfp4_table(report())


def test_what_is_not_installed_is_listed_as_not_checked() -> None:
    assert report().unchecked == (Unchecked(name="modelopt", reason="nvidia-modelopt is not installed"),)
    assert "| `modelopt:mxfp4` | rceil | toward-zero | not checked | not checked |" in mxfp4_table(report())
    rows = report().compared(Agreement.NOT_CHECKED)
    assert {row.remark for row in rows} >= {NO_SIDE.format(name) for name in ("torchao 0.18.0", "modelopt 0.47.0")}
    sides, absent = find_sides(["no-such-backend"])
    assert sides == () and absent[0].name == "no-such-backend"


def test_a_library_of_another_version_goes_on_and_is_recorded() -> None:
    found = collect([replace(planted(), caveat="planted 0 was not tested")], [], "made by a test", FEW)
    assert found.pairs and found.caveats == ("planted 0 was not tested",)
    assert "Caveat: planted 0" in render_markdown(found) and "Caveat: planted 0" in render_page(found)
    assert report().caveats == ()


def test_a_report_without_mxfp4_is_rendered_too() -> None:
    nibbles = replace(catalogue_side("int4-g32-div7"), name="planted:int4", backend="planted")
    found = collect([nibbles], [], "made by a test", FEW)
    assert "| int4 | int4-g32-div7 |" in render_markdown(found) and "int4" in render_page(found)
    assert count_functions(found) == 0 and implementations(found, MXFP4) == ()


def test_signed_zeros_are_equal_values_and_other_forms_are_not_compared() -> None:
    a = reference_of(WEIGHTS, get_scheme("mxfp4-even"))
    b = replace(a, values=torch.where(a.values == 0, -a.values, a.values), scales=None)
    values = mismatch(a, b, Part.VALUES)
    assert values is not None and not values.any()
    assert mismatch(a, b, Part.SCALES) is None
    assert mismatch(a, reference_of(WEIGHTS, get_scheme("int4-g32-div7")), Part.CODES) is None


def seen(where: Tensor, draws: int = 1, *, is_single: bool = False) -> Observed:
    """Returns what was observed where the rows of all draws differ like this."""
    return Observed(where.double().mean(-1), draws, where.numel() // draws, is_single)


def test_an_interval_is_wider_where_rows_differ_as_a_whole() -> None:
    clustered, scattered = torch.zeros(64, 64, dtype=torch.bool), torch.zeros(64, 64, dtype=torch.bool)
    clustered[:16] = True
    scattered[:, :16] = True
    assert half_width(seen(clustered)) > 0.2
    # every row has the same share, so only the rare-event term is left: -ln(0.005) / 4096
    assert half_width(seen(scattered)) == pytest.approx(5.298317366548036 / 4096, rel=1e-12)


def test_more_draws_leave_the_error_of_the_published_one() -> None:
    rows = (torch.arange(4096) % 4 == 0).unsqueeze(1).expand(-1, 64)
    rare = 5.298317366548036 / (4096 * 64)
    one, many = half_width(seen(rows[:64])) - rare * 64, half_width(seen(rows, 64)) - rare * 64
    # sqrt(1 + 1 / 64) against sqrt(2), and the 99 % point of 63 degrees of freedom, 2.656, against 2.578 of 4095;
    # the deviation of 64 clusters has one degree less than their number, that of 4096 likewise.
    expected = (1 + 1 / 64) ** 0.5 / 2**0.5 * 2.5772 / 2.6561 * (63 / 64 * 4096 / 4095) ** 0.5
    assert many / one == pytest.approx(expected, rel=1e-3)


def of(figure: Figure, sides: list[Side], draws: Draws = FEW) -> dict[Figure, Observed]:
    """Observes one figure."""
    return observe([figure], {side.name: side for side in sides}, torch.float32, draws)


@pytest.mark.parametrize(
    ("share", "unit", "verdict"),
    [(0.0, 0.0, Agreement.DIFFERS), (0.0, 1e-6, Agreement.AGREES), (0.01, 1e-4, Agreement.DIFFERS)],
)
def test_one_difference_contradicts_equality_but_not_a_count_of_none(
    share: float, unit: float, verdict: Agreement
) -> None:
    figure = Figure("test", PLANTED, "mxfp4-even", FP32, Part.VALUES, share, unit)
    (row,) = hold_against([figure], of(figure, [planted(), catalogue_side("mxfp4-even")]), {})
    assert row.agreement is verdict and row.found == 2.0**-16 and row.num_draws == 2
    assert (row.remark == UNSETTLED) == (verdict is Agreement.DIFFERS)


def test_one_scale_for_a_tensor_makes_its_interval_of_whole_draws() -> None:
    figure = Figure("test", "fp8-tensor", "fp8-tensor-ue8m0", FP32, Part.VALUES, 0.5, 1e-2)
    observed = of(figure, [catalogue_side(figure.a), catalogue_side(figure.b)])
    assert observed[figure].is_single and len(observed[figure].shares) == 3 == observed[figure].num_draws
    (row,) = hold_against([figure], observed, {})
    shares = observed[figure].shares
    assert row.low == float(shares.min()) - 0.005 and row.high == float(shares.max()) + 0.005
    inside = figure._replace(share=float(shares.max()))
    assert hold_against([inside], {inside: observed[figure]}, {})[0].agreement is Agreement.AGREES
    outside = figure._replace(share=float(shares.max()) + 0.006)
    assert hold_against([outside], {outside: observed[figure]}, {})[0].agreement is Agreement.DIFFERS


def test_what_two_sides_store_in_other_forms_is_not_observed() -> None:
    figure = Figure("test", "mxfp4-even", "int4-g32-div7", FP32, Part.CODES, 0.5, 1e-2)
    assert of(figure, [catalogue_side(figure.a), catalogue_side(figure.b)]) == {}
    assert of(figure, [catalogue_side(figure.a)]) == {}
    assert hold_against([figure], {}, {})[0].agreement is Agreement.NOT_CHECKED


@pytest.mark.parametrize(("version", "verdict"), [("0.18.0", Agreement.AGREES), ("0.19.0", Agreement.NOT_CHECKED)])
def test_a_figure_holds_for_the_version_it_names(version: str, verdict: Agreement) -> None:
    figure = Figure("test", "torchao:mxfp4-even", "mxfp4-even", FP32, Part.VALUES, 0.0, 0.0)
    even = catalogue_side("mxfp4-even")
    observed = of(figure, [even, replace(even, name="torchao:mxfp4-even")])
    assert hold_against([figure], observed, {"torchao": version})[0].agreement is verdict


def test_families_are_elements_and_groups() -> None:
    assert len(family_schemes(MXFP4)) == 12 and yardstick(MXFP4) == "mxfp4-even"
    assert {family_of(get_scheme(name)) for name in family_schemes("INT4 g32")} == {"INT4 g32"}
    assert "gguf-q4_0" in family_schemes("INT4 g32") and "fp8-block128-ue8m0" in family_schemes("E4M3 block128")
    assert family_of(get_scheme("nvfp4")) == "NVFP4" and family_of(get_scheme("mxfp8-e4m3-even")) == "E4M3 g32"
    assert families(report()) == (MXFP4,)


def test_a_scheme_is_compared_with_what_a_library_decodes_to() -> None:
    widened = replace(catalogue_side("int4-g32-div7"), name="wide:int4", backend="wide", run=in_fp32)
    found = collect([widened], [], "made by a test", FEW)
    assert all(pair.identical for pair in found.pairs)
    assert pair_of(found.mutual, "int4-g32-div7", "wide:int4", BF16).identical
    assert implementations(found, "INT4 g32")[0].scheme == "int4-g32-div7"


def in_fp32(x: Tensor) -> Outcome:
    """Quantizes as int4-g32-div7 and decodes to fp32, which bf16 cannot hold."""
    return reference_of(x, get_scheme("int4-g32-div7"), torch.float32)


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
    assert format_mxfp4_table(paths[0]) == f"{count_in_words(report())}\n\n{mxfp4_table(report())}"


def test_the_committed_report_is_settled_and_counts_seventeen_implementations() -> None:
    committed = Conformance.from_json(REPORT.read_text(encoding="utf-8"))
    assert committed.published and not committed.unsettled()
    rows = implementations(committed, MXFP4)
    assert (sum(len(row.names) for row in rows), len(rows)) == (17, 9) and count_functions(committed) == 9
    own = [row for row in rows if "torchao:mxfp4-even" in row.names]
    assert own[0].pair is not None and own[0].pair.identical and own[0].scheme == "mxfp4-even"


def test_the_readme_shows_the_table_of_the_committed_report() -> None:
    shown, made = (" ".join(text.split()) for text in (README.read_text(encoding="utf-8"), format_mxfp4_table()))
    assert made in shown, "paste the output of `python -m benchmarks.conformance.readme`"


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (0.0, "0"), (1.0, "100"), (1e-6, "<0.001"), (0.9998, "99.98")]
)
def test_percent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_a_wrong_number_of_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "100"])
    assert "a multiple of 128" in capsys.readouterr().err
