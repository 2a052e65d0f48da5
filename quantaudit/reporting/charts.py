"""All charts of a report, defined once; each gives a Vega-Lite spec for the page and a static SVG for files."""

from __future__ import annotations

from typing import NamedTuple

from quantaudit.core.report import AuditReport, ExpertMap, LayerProfile
from quantaudit.reporting.chart import Chart, to_svg
from quantaudit.reporting.forest import build_forest
from quantaudit.reporting.heatmap import build_heatmap
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.profile import build_profile

__all__ = ["Chart", "ChartSet", "build_charts", "to_svg"]


class ChartSet(NamedTuple):
    """The charts that a report has data for, the tables beside what they were drawn from."""

    forest: Chart | None
    heatmaps: tuple[tuple[ExpertMap, Chart], ...]
    profiles: tuple[tuple[LayerProfile, Chart], ...]

    def all(self) -> tuple[Chart, ...]:
        """Returns every chart, in reading order."""
        first = () if self.forest is None else (self.forest,)
        return (*first, *(chart for _, chart in self.heatmaps), *(chart for _, chart in self.profiles))


def build_charts(report: AuditReport, palette: Palette) -> ChartSet:
    """Returns the charts of a report; what it has no data for is left out."""
    tables, profiles = report.expert_maps, report.layer_profiles
    heatmaps = ((t, build_heatmap(t, tuple(o for o in tables if o is not t), palette)) for t in tables)
    lines = ((p, build_profile(p, palette)) for p in profiles)
    return ChartSet(
        build_forest(report, palette),
        tuple((table, chart) for table, chart in heatmaps if chart is not None),
        tuple((profile, chart) for profile, chart in lines if chart is not None),
    )
