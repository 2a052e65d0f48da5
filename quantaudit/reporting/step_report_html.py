"""The report of a run under audit as one HTML page: no script, no request, light and dark."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from quantaudit.core.rl_run import RlResult
from quantaudit.core.step_log import Event, RunVerdict
from quantaudit.reporting.chart import to_page
from quantaudit.reporting.palette import DARK, LIGHT, PAGE
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.step_report import describe_rewards, explain, headline, place_of, tell_story
from quantaudit.reporting.step_report_charts import build_run_charts
from quantaudit.reporting.step_report_console import write_mean
from quantaudit.reporting.step_report_markdown import REWARDS_NOTE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_TONES = {RunVerdict.CLEAN: "admit", RunVerdict.MISMATCH: "reject", RunVerdict.UNCHECKED: "inconclusive"}
_MOST_FINDINGS = 200


def render_run_html(events: Iterable[Event], result: RlResult | None = None) -> str:
    """Returns the page.

    Args:
        events: The log.
        result: What training was good for, where it was measured.

    Raises:
        NotMeasuredError: If no step was finished.
    """
    story = tell_story(events)
    environment = Environment(
        loader=PackageLoader("quantaudit.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show,
    )
    environment.filters.update(draw=to_page, mean=write_mean, explain=explain, place=place_of)
    timeline, *charts = build_run_charts(story, PAGE)
    return environment.get_template("step_report.html.j2").render(
        story=story,
        headline=headline(story),
        rewards=describe_rewards(result),
        rewards_note=REWARDS_NOTE,
        tone=_TONES[story.verdict],
        timeline=timeline,
        charts=charts,
        findings=story.findings[:_MOST_FINDINGS],
        num_hidden=max(0, len(story.findings) - _MOST_FINDINGS),
        last=next((step for step in reversed(story.steps) if step.checks), None),
        num_canaries=sum(step.canary is not None for step in story.steps),
        num_transports=sum(step.transport is not None for step in story.steps),
        policy=POLICY,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def _show(value: object) -> object:
    """Escapes hidden characters in every foreign text that reaches the page."""
    return show_hidden(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value
