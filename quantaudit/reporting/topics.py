"""Diagnostics by topic, in words: the rows of their tables, and the charts of the series about the same thing."""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.report import AuditReport
from quantaudit.reporting.chart import Chart
from quantaudit.reporting.floor import is_difference, is_within_floor
from quantaudit.reporting.quantity import unit_beside, write_bounds, write_quantity, write_size

WITHIN = "within the floor"
TITLES = {
    Topic.TOKENS: "Token distributions",
    Topic.CALIBRATION: "Calibration",
    Topic.ANSWERS: "Answers",
    Topic.ROUTING: "Routing",
    Topic.WEIGHTS: "Weights",
    Topic.GENERATION: "Generation",
    Topic.SAFETY: "Safety",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticRow:
    """One diagnostic as a table shows it.

    Attributes:
        unit: Beside the title; empty for shares, whose numbers have a percent sign.
        is_within: No further from nothing than its floor, so shown muted.
    """

    name: str
    title: str
    unit: str
    hi: str
    lo: str
    value: str
    interval: str
    floor: str
    num_items: str
    note: str
    is_within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """Everything about one topic."""

    topic: Topic
    title: str
    rows: tuple[DiagnosticRow, ...]
    charts: tuple[tuple[Series, Chart], ...]


def group_topics(report: AuditReport, charts: tuple[tuple[Series, Chart], ...]) -> tuple[TopicGroup, ...]:
    """Returns the topics that have anything, in the order of their list."""
    groups = (
        TopicGroup(
            topic=topic,
            title=TITLES[topic],
            rows=tuple(build_diagnostic_row(d) for d in report.diagnostics if d.topic is topic),
            charts=tuple(pair for pair in charts if pair[0].topic is topic),
        )
        for topic in Topic
    )
    return tuple(group for group in groups if group.rows or group.charts)


def build_diagnostic_row(diagnostic: Diagnostic) -> DiagnosticRow:
    """Returns the row of one diagnostic."""
    is_signed = is_difference(diagnostic)
    return DiagnosticRow(
        name=diagnostic.name,
        title=diagnostic.title,
        unit=unit_beside(diagnostic.unit),
        hi=write_quantity(diagnostic.hi, diagnostic.unit),
        lo=write_quantity(diagnostic.lo, diagnostic.unit),
        value=write_quantity(diagnostic.value, diagnostic.unit, is_difference=is_signed),
        interval=write_bounds(diagnostic.interval, diagnostic.unit, is_difference=is_signed),
        floor=write_size(diagnostic.floor, diagnostic.unit),
        num_items=f"{diagnostic.num_items:,}",
        note=diagnostic.note,
        is_within=is_within_floor(diagnostic),
    )
