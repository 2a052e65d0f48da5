"""Charts show the report's numbers: nothing is dropped, nothing leaves the axis unmarked, nothing missing is drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from typing import cast

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, ExpertMap, LayerProfile
from quantaudit.core.serial import Json
from quantaudit.reporting.chart import channel_title
from quantaudit.reporting.charts import Chart, build_charts, to_svg
from quantaudit.reporting.forest_layout import lay_out_forest
from quantaudit.reporting.heatmap import build_heatmap
from quantaudit.reporting.palette import LIGHT, PAGE
from quantaudit.reporting.profile import build_profile

SVG = "{http://www.w3.org/2000/svg}"


def forest(report: AuditReport) -> Chart:
    chart = build_charts(report, LIGHT).forest
    assert chart is not None
    return chart


def rows_with(chart: Chart, *keys: str) -> list[dict[str, Json]]:
    """Returns the data rows that have these keys, every data set once, in the order of the layers."""
    layers = cast("list[dict[str, dict[str, str]]]", [chart.spec, *cast("list[Json]", chart.spec["layer"])])
    data = cast("dict[str, list[dict[str, Json]]]", chart.spec["datasets"])
    names = dict.fromkeys(layer["data"]["name"] for layer in layers if "data" in layer)
    return [row for name in names for row in data[name] if set(keys) <= set(row)]


def find(rows: list[dict[str, Json]], clause: str) -> dict[str, Json]:
    (row,) = [row for row in rows if row.get("clause") == clause]
    return row


def test_intervals_are_shares_of_the_margin(admitted: AuditReport) -> None:
    fidelity = admitted.clauses[2]
    assert fidelity.estimate is not None
    row = find(rows_with(forest(admitted), "lower", "upper"), "fidelity")
    assert row["lower"] == fidelity.estimate.interval.lower / 0.02
    assert row["upper"] == fidelity.estimate.interval.upper / 0.02


def test_every_gate_has_a_row_in_order(admitted: AuditReport) -> None:
    names = [gate.name for gate in admitted.gates()]
    assert lay_out_forest(admitted).names() == names
    assert json.dumps(names) in json.dumps(forest(admitted).spec)


def test_the_floor_is_a_band_around_zero(admitted: AuditReport) -> None:
    bands = [r for r in rows_with(forest(admitted), "from", "to") if r["clause"] == "margin[long-recall]"]
    assert len(bands) == 2
    # The first is what the clause tolerates, the second the floor of 0.03 nats against a margin of 0.25.
    assert (bands[1]["from"], bands[1]["to"]) == (-0.03 / 0.25, 0.03 / 0.25)


def test_only_two_sided_clauses_are_closed_on_the_left(admitted: AuditReport) -> None:
    layout = lay_out_forest(admitted)
    allowed = {row.words["clause"]: row.allowed for row in layout.rows}
    assert allowed["refusal"] == (-1.0, 1.0)
    assert allowed["fidelity"] == (layout.axis.left, 1.0)
    assert layout.margin_lines == (-1.0, 1.0)


def test_what_lies_beyond_the_axis_ends_in_an_arrow_with_its_size(rejected: AuditReport) -> None:
    arrows = rows_with(forest(rejected), "angle", "size")
    assert find(arrows, "fidelity")["size"] == "493 x"
    assert find(arrows, "fidelity")["angle"] == 90
    assert not [p for p in rows_with(forest(rejected), "value") if p["clause"] == "fidelity"]


def test_an_interval_without_bounds_has_arrows_at_both_ends(unbounded: AuditReport) -> None:
    angles = [a["angle"] for a in rows_with(forest(unbounded), "angle") if a["clause"] == "fidelity"]
    assert angles == [90, -90]


def test_a_failing_exact_gate_is_in_the_chart(unbounded: AuditReport) -> None:
    row = find(rows_with(forest(unbounded), "text"), "integrity")
    assert (row["text"], row["outcome"]) == ("differs", "fail")


def test_unmeasured_gates_are_in_the_chart(sparse: AuditReport) -> None:
    rows = rows_with(forest(sparse), "text")
    assert len(rows) == len(sparse.gates())
    assert {row["text"] for row in rows} == {"not measured"}


def test_outcomes_differ_in_shape_too(undecided: AuditReport) -> None:
    root = ElementTree.fromstring(to_svg(forest(undecided)))
    legend = [text.text for text in root.iter(f"{SVG}text") if text.text in {"pass", "fail", "undecided"}]
    shapes = {
        path.get("d") for path in root.iter(f"{SVG}path") if "legend" not in str(path.get("class")) and path.get("fill")
    }
    assert legend == ["pass", "fail", "undecided"]
    assert len(shapes) >= 3


def table(values: tuple[tuple[float | None, ...], ...], *, larger_is_better: bool | None = True) -> ExpertMap:
    layers = tuple(range(len(values)))
    return ExpertMap(
        name="sqnr", title="SQNR", unit="dB", larger_is_better=larger_is_better, layers=layers, values=values
    )


def test_missing_cells_stay_missing() -> None:
    chart = build_heatmap(table(((1.0, None), (3.0, float("inf")))), (), LIGHT)
    assert chart is not None
    assert '"value": [1.0, null]' in json.dumps(chart.spec)
    assert '"value": [3.0, null]' in json.dumps(chart.spec)


def test_an_empty_map_has_no_chart(sparse: AuditReport) -> None:
    assert build_charts(sparse, LIGHT).heatmaps == ()


@pytest.mark.parametrize(("larger_is_better", "strongest_first"), [(True, True), (False, False), (None, False)])
def test_stronger_is_worse(larger_is_better: bool | None, strongest_first: bool) -> None:
    chart = build_heatmap(table(((1.0, 2.0),), larger_is_better=larger_is_better), (), LIGHT)
    assert chart is not None
    colors = LIGHT.heat()[::-1] if strongest_first else LIGHT.heat()
    assert f'"range": {json.dumps(colors)}' in json.dumps(chart.spec)


def test_a_constant_map_can_be_drawn() -> None:
    chart = build_heatmap(table(((2.0, 2.0),)), (), LIGHT)
    assert chart is not None
    assert to_svg(chart).startswith("<svg")


def test_the_tooltip_tells_the_other_tables(admitted: AuditReport) -> None:
    _, chart = build_charts(admitted, LIGHT).heatmaps[0]
    text = json.dumps(chart.spec)
    assert all(title in text for title in ["Weight error (dB)", "Load (share)", "Routing agreement (share)"])


def test_a_profile_shows_its_floor(admitted: AuditReport) -> None:
    chart = build_profile(admitted.layer_profiles[0], LIGHT)
    assert chart is not None
    values = [row["value"] for row in rows_with(chart, "layer", "value")]
    # Dashed floor, its label at the last layer, then the line.
    assert values == [1e-6, 1e-6, 2e-6, 2e-6, 3e-6, 3e-6, 0.012, 0.019, 0.027, 0.031, 0.042]


def test_a_profile_leaves_out_what_is_not_finite() -> None:
    profile = LayerProfile(
        name="x", title="X", unit="", larger_is_better=None, layers=(1, 2), values=(float("nan"), 2.0)
    )
    chart = build_profile(profile, LIGHT)
    assert chart is not None
    assert [row["layer"] for row in rows_with(chart, "value")] == [2]
    assert build_profile(profile.model_copy(update={"values": (float("nan"),) * 2}), LIGHT) is None


@pytest.mark.parametrize("name", ["admitted", "sparse", "unbounded", "hostile"])
def test_pictures_hold_no_script_and_no_link(name: str, request: pytest.FixtureRequest) -> None:
    for chart in build_charts(request.getfixturevalue(name), PAGE).all():
        tags = {element.tag for element in ElementTree.fromstring(to_svg(chart, has_title=True)).iter()}
        assert tags <= {
            f"{SVG}{tag}" for tag in ("svg", "g", "path", "rect", "text", "tspan", "line", "defs", "clipPath")
        }


def test_names_are_safe_in_file_names(hostile: AuditReport) -> None:
    names = [chart.name for chart in build_charts(hostile, LIGHT).all()]
    assert all(name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


def test_an_outcome_has_one_word_everywhere() -> None:
    assert {o.value for o in Outcome} == {"pass", "fail", "undecided"}


def test_a_title_cannot_reach_an_expression() -> None:
    # Vega-Lite pastes titles into expressions and leaves a backslash as it is, so a quote after one would end the text.
    assert channel_title('a\\" + b') == "a/' + b"
