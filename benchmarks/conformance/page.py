"""The report as one HTML file: no script, no request, light and dark."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.conformance.digest import (
    LIMITS,
    YARDSTICK,
    cells,
    count_functions,
    implementations,
    lines,
    percent,
    rule_matrix,
    summarize,
)
from benchmarks.conformance.readme import absent_quantizers
from benchmarks.conformance.sides import mxfp4_schemes
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
    environment.filters.update(percent=percent, cells=cells, step=_step)
    return environment.get_template("page.html.j2").render(
        report=report,
        summary=summarize(report),
        limits=LIMITS.replace("`", ""),
        functions=count_functions(report),
        implementations=implementations(report, absent_quantizers(report.unchecked)),
        matrix=rule_matrix(report),
        rules=mxfp4_schemes(),
        backends=lines(report),
        yardstick=YARDSTICK,
        counts={agreement.value: len(report.compared(agreement)) for agreement in Agreement},
        agreement=Agreement,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def _step(share: float) -> int:
    """Returns 0 to 4, the darkness of a cell."""
    return sum(share > limit for limit in _STEPS)
