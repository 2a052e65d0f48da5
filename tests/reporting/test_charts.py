"""Charts show the report's numbers: nothing is dropped, nothing leaves the axis unmarked, nothing missing is drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.diagnostic import Series, Topic
from quantaudit.core.report import AuditReport, ExpertMap, LayerProfile
from quantaudit.reporting.chart import Chart, to_page, to_svg
from quantaudit.reporting.charts import build_charts
from quantaudit.reporting.forest import ROW, SHAPES, TOP, legend
from quantaudit.reporting.forest_layout import lay_out_forest
from quantaudit.reporting.heatmap import build_heatmap
from quantaudit.reporting.marks import Bar, Grid, Line, Point, Shape, Tip, Words
from quantaudit.reporting.palette import LIGHT, PAGE
from quantaudit.reporting.series_chart import as_series, build_series

SVG = "{http://www.w3.org/2000/svg}"


def forest(report: AuditReport) -> Chart:
    chart = build_charts(report, LIGHT).forest
    assert chart is not None
    return chart


def height_of(report: AuditReport, clause: str) -> float:
    """Returns where the row of a clause lies."""
    return TOP + ROW * (lay_out_forest(report).names().index(clause) + 0.5)


def points(chart: Chart, y: float) -> list[Point]:
    return [mark for mark in chart.marks if isinstance(mark, Point) and mark.y == y]


def words(chart: Chart, y: float | None = None) -> list[str]:
    return [mark.text for mark in chart.marks if isinstance(mark, Words) and (y is None or abs(mark.y - y) < 6)]


def test_intervals_are_shares_of_the_margin(admitted: AuditReport) -> None:
    fidelity = admitted.clauses[2]
    assert fidelity.estimate is not None
    axis, y = lay_out_forest(admitted).axis, height_of(admitted, "fidelity")
    (line,) = [m for m in forest(admitted).marks if isinstance(m, Line) and m.y0 == m.y1 == y]
    interval = fidelity.estimate.interval
    assert (line.x0, line.x1) == (axis.place(interval.lower / 0.02), axis.place(interval.upper / 0.02))
    assert [p.x for p in points(forest(admitted), y)] == [axis.place(fidelity.estimate.value / 0.02)]


def test_every_gate_has_a_row_in_order(admitted: AuditReport) -> None:
    names = [gate.name for gate in admitted.gates()]
    assert lay_out_forest(admitted).names() == names
    told = [m.text.splitlines()[0] for m in forest(admitted).marks if isinstance(m, Tip)]
    assert told == names


def test_the_floor_is_a_band_around_zero(admitted: AuditReport) -> None:
    axis, y = lay_out_forest(admitted).axis, height_of(admitted, "margin[long-recall]")
    bars = [m for m in forest(admitted).marks if isinstance(m, Bar) and m.y < y < m.y + m.height]
    # The first is what the clause tolerates, the second the floor of 0.03 nats against a margin of 0.25.
    assert [(bar.start, bar.end) for bar in bars[1:]] == [(axis.place(-0.03 / 0.25), axis.place(0.03 / 0.25))]
    assert [bar.color for bar in bars] == [LIGHT.allowed, LIGHT.floor]


def test_only_two_sided_clauses_are_closed_on_the_left(admitted: AuditReport) -> None:
    layout = lay_out_forest(admitted)
    allowed = {row.words["clause"]: row.allowed for row in layout.rows}
    assert allowed["refusal"] == (-1.0, 1.0)
    assert allowed["fidelity"] == (layout.axis.left, 1.0)
    assert layout.margin_lines == (-1.0, 1.0)


def test_what_lies_beyond_the_axis_ends_in_an_arrow_with_its_size(rejected: AuditReport) -> None:
    y = height_of(rejected, "fidelity")
    assert [(p.shape, p.x) for p in points(forest(rejected), y)] == [(Shape.RIGHT, 1)]
    assert "493 x" in words(forest(rejected), y)


def test_an_interval_without_bounds_has_arrows_at_both_ends(unbounded: AuditReport) -> None:
    shapes = [p.shape for p in points(forest(unbounded), height_of(unbounded, "fidelity"))]
    assert {Shape.LEFT, Shape.RIGHT} <= set(shapes)


def test_a_failing_exact_gate_is_in_the_chart(unbounded: AuditReport) -> None:
    y = height_of(unbounded, "integrity")
    assert words(forest(unbounded), y) == ["integrity", "differs"]
    assert [p.shape for p in points(forest(unbounded), y)] == [SHAPES[Outcome.FAIL]]


def test_unmeasured_gates_are_in_the_chart(sparse: AuditReport) -> None:
    assert words(forest(sparse)).count("not measured") == len(sparse.gates())


def test_outcomes_differ_in_shape_too() -> None:
    marks = list(legend(LIGHT))
    assert [m.text for m in marks if isinstance(m, Words)] == ["pass", "fail", "undecided"]
    assert len({m.shape for m in marks if isinstance(m, Point)}) == 3


def table(values: tuple[tuple[float | None, ...], ...], *, larger_is_better: bool | None = True) -> ExpertMap:
    layers = tuple(range(len(values)))
    return ExpertMap(
        name="sqnr", title="SQNR", unit="dB", larger_is_better=larger_is_better, layers=layers, values=values
    )


def grid(shown: ExpertMap) -> Grid:
    chart = build_heatmap(shown, LIGHT)
    assert chart is not None
    found = chart.grid()
    assert found is not None
    return found


def test_missing_cells_stay_hollow() -> None:
    found = grid(table(((1.0, None), (3.0, float("inf")))))
    assert found.hollow == ((0, 1), (1, 1))
    assert {cell for _, cells in found.fills for cell in cells} == {(0, 0), (1, 0)}


def test_an_empty_map_has_no_chart(sparse: AuditReport) -> None:
    assert build_charts(sparse, LIGHT).heatmaps == ()


@pytest.mark.parametrize(("larger_is_better", "strongest"), [(True, (0, 0)), (False, (0, 1)), (None, (0, 1))])
def test_stronger_is_worse(larger_is_better: bool | None, strongest: tuple[int, int]) -> None:
    found = grid(table(((1.0, 2.0),), larger_is_better=larger_is_better))
    assert dict(found.fills)[LIGHT.heat_7] == (strongest,)


def test_steps_are_even() -> None:
    found = grid(table((tuple(float(i) for i in range(70)),), larger_is_better=False))
    assert [len(cells) for _, cells in found.fills] == [10] * 7


def test_a_constant_map_can_be_drawn() -> None:
    chart = build_heatmap(table(((2.0, 2.0),)), LIGHT)
    assert chart is not None
    assert to_svg(chart).startswith("<svg")


def test_a_large_map_has_every_cell(wide: AuditReport) -> None:
    """Cells of one step in one row are strokes that start where the last one ended."""
    shown = wide.expert_maps[0]
    chart = build_heatmap(shown, LIGHT)
    assert chart is not None
    paths = ElementTree.fromstring(to_svg(chart)).findall(f".//{SVG}svg[@class='grid']/{SVG}path")
    drawn: set[tuple[int, int]] = set()
    for path in paths:
        row = column = 0
        for move, x, y in re.findall(r"([Mmh])(\d+)(?: ([\d.]+))?", str(path.get("d"))):
            if move == "M":
                row, column = int(float(y)), int(x)
            elif move == "m":
                column += int(x)
            else:
                assert (row, column) not in drawn
                drawn.add((row, column))
                column += 1
    assert len(drawn) == sum(len(values) for values in shown.values) == 60 * 384


def test_a_profile_shows_its_floor(admitted: AuditReport) -> None:
    profile = admitted.layer_profiles[0]
    chart = build_series(as_series(profile), LIGHT)
    assert chart is not None
    dashed = [m for m in chart.marks if isinstance(m, Line) and m.is_dashed]
    assert len(dashed) == len(profile.layers) - 1
    assert len([m for m in chart.marks if isinstance(m, Point)]) == len(profile.layers)
    assert "floor" in words(chart)


def test_a_profile_leaves_out_what_is_not_finite() -> None:
    profile = LayerProfile(
        name="x", title="X", unit="", larger_is_better=None, layers=(1, 2), values=(float("nan"), 2.0)
    )
    chart = build_series(as_series(profile), LIGHT)
    assert chart is not None
    assert [m.text for m in chart.marks if isinstance(m, Tip)] == ["layer 2\n2"]
    assert build_series(as_series(profile.model_copy(update={"values": (float("nan"),) * 2})), LIGHT) is None


def along(labels: tuple[str, ...], values: tuple[float | None, ...], floor: tuple[float | None, ...] = ()) -> Series:
    return Series(
        name="kl",
        topic=Topic.TOKENS,
        title="KL",
        axis="family",
        unit="nats",
        larger_is_better=False,
        labels=labels,
        values=values,
        floor=floor,
    )


def test_names_get_a_row_each_and_a_gap_is_said() -> None:
    chart = build_series(along(("a", "b", "c"), (1.0, None, 3.0)), LIGHT)
    assert chart is not None
    assert [t for t in words(chart) if t in {"a", "b", "c", "not measured"}] == ["a", "b", "not measured", "c"]
    dots = [m for m in chart.marks if isinstance(m, Point)]
    assert [round(dot.x * 3, 9) for dot in dots] == [1.0, 3.0]


def test_numbers_make_a_line_with_true_distances() -> None:
    chart = build_series(along(("1", "2", "4"), (1.0, 2.0, 3.0)), LIGHT)
    assert chart is not None
    a, b, c = (m.x for m in chart.marks if isinstance(m, Point))
    assert c - b == pytest.approx(2 * (b - a))  # shares of a width: rounding of a few ulps


def test_crowded_numbers_are_spread_evenly() -> None:
    chart = build_series(along(("0.1", "1", "50", "99", "99.9"), (1.0, 2.0, 3.0, 4.0, 5.0)), LIGHT)
    assert chart is not None
    places = [m.x for m in chart.marks if isinstance(m, Point)]
    steps = [b - a for a, b in zip(places, places[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * 4)  # shares of a width: rounding of a few ulps
    assert "Not to scale." in chart.caption


def test_points_within_the_floor_are_hollow() -> None:
    for labels in (("1", "2"), ("a", "b")):
        chart = build_series(along(labels, (0.1, 3.0), (0.2, 0.2)), LIGHT)
        assert chart is not None
        assert [m.is_filled for m in chart.marks if isinstance(m, Point)] == [False, True]
        assert "Hollow: within the floor" in chart.caption


def test_the_ladder_shows_both_damages_on_every_rung(admitted: AuditReport) -> None:
    charts = build_charts(admitted, LIGHT).ladder
    assert admitted.ladder is not None
    assert [chart.name for chart in charts] == ["ladder-nll", "ladder-accuracy"]
    for chart in charts:
        places = [m.x for m in chart.marks if isinstance(m, Point)]
        assert len(places) == len(admitted.ladder.rungs)
        assert places == sorted(places)
        assert all(rung.scheme in " ".join(words(chart)) for rung in admitted.ladder.rungs)


@pytest.mark.parametrize("name", ["admitted", "sparse", "unbounded", "hostile"])
def test_pictures_hold_no_script_and_no_link(name: str, request: pytest.FixtureRequest) -> None:
    for chart in build_charts(request.getfixturevalue(name), PAGE).all():
        for text in (to_svg(chart, has_title=True), f'<svg xmlns="{SVG[1:-1]}">{to_page(chart)}</svg>'):
            elements = list(ElementTree.fromstring(text).iter())
            assert {element.tag.removeprefix(SVG) for element in elements} <= {
                "svg", "g", "path", "rect", "text", "line", "title", "desc",
            }  # fmt: skip
            assert not [key for element in elements for key in element.attrib if key.startswith("on") or "href" in key]


def test_names_are_safe_in_file_names(hostile: AuditReport) -> None:
    names = [chart.name for chart in build_charts(hostile, LIGHT).all()]
    assert all(name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


def test_an_outcome_has_one_word_everywhere() -> None:
    assert {o.value for o in Outcome} == {"pass", "fail", "undecided"}
