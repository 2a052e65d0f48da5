"""The report as one HTML file: no script, no request, light and dark."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.conformance.digest import (
    LIMITS,
    cells,
    count_functions,
    families,
    implementations,
    lines,
    percent,
    rule_matrix,
    summarize,
)
from benchmarks.conformance.families import MXFP4, family_schemes, yardstick
from benchmarks.conformance.markdown import PUBLISHED, interval
from benchmarks.conformance.readme import absent_quantizers
from benchmarks.conformance.table import Agreement, Conformance
from quantaudit.reporting.palette import DARK, LIGHT

_STEPS = (0.0, 0.01, 0.08, 0.16)  # shares above which a cell of the matrix is a step darker


def render_page(report: Conformance) -> str:
    """Returns the page."""
    environment = Environment(
        loader=PackageLoader("benchmarks.conformance", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, cells=cells, step=_step, interval=interval)
    absent = tuple(absent_quantizers(report.unchecked))
    return environment.get_template("page.html.j2").render(
        report=report,
        summary=summarize(report),
        limits=LIMITS.replace("`", ""),
        functions=count_functions(report),
        implementations={family: implementations(report, family, absent) for family in families(report)},
        mxfp4=MXFP4,
        yardsticks={family: yardstick(family) for family in families(report)},
        about_published=PUBLISHED,
        matrix=rule_matrix(report),
        rules=family_schemes(MXFP4),
        backends=lines(report),
        counts={agreement.value: len(report.compared(agreement)) for agreement in Agreement},
        agreement=Agreement,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def _step(share: float) -> int:
    """Returns 0 to 4, the darkness of a cell."""
    return sum(share > limit for limit in _STEPS)
