"""All charts of a report, defined once, drawn into the page and into files of their own."""

from __future__ import annotations

from typing import NamedTuple

from quantaudit.core.diagnostic import Series
from quantaudit.core.report import AuditReport, ExpertMap
from quantaudit.reporting.chart import Chart, to_page, to_svg
from quantaudit.reporting.forest import build_forest
from quantaudit.reporting.heatmap import build_heatmap
from quantaudit.reporting.ladder_chart import build_ladder
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.series_chart import as_series, build_series

__all__ = ["Chart", "ChartSet", "build_charts", "to_page", "to_svg"]


class ChartSet(NamedTuple):
    """The charts that a report has data for, the tables and series beside what they were drawn from."""

    forest: Chart | None
    ladder: tuple[Chart, ...]
    series: tuple[tuple[Series, Chart], ...]
    heatmaps: tuple[tuple[ExpertMap, Chart], ...]
    profiles: tuple[tuple[Series, Chart], ...]

    def all(self) -> tuple[Chart, ...]:
        """Returns every chart, in reading order."""
        first = () if self.forest is None else (self.forest,)
        pairs = (*self.series, *self.heatmaps, *self.profiles)
        return (*first, *self.ladder, *(chart for _, chart in pairs))


def build_charts(report: AuditReport, palette: Palette) -> ChartSet:
    """Returns the charts of a report; what it has no data for is left out."""
    heatmaps = ((table, build_heatmap(table, palette)) for table in report.expert_maps)
    return ChartSet(
        build_forest(report, palette),
        build_ladder(report.ladder, palette) if report.ladder else (),
        _drawn(report.series, palette),
        tuple((table, chart) for table, chart in heatmaps if chart is not None),
        _drawn(tuple(map(as_series, report.layer_profiles)), palette),
    )


def _drawn(series: tuple[Series, ...], palette: Palette) -> tuple[tuple[Series, Chart], ...]:
    charts = ((one, build_series(one, palette)) for one in series)
    return tuple((one, chart) for one, chart in charts if chart is not None)
