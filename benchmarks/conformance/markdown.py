"""The report in markdown: MXFP4 first, the published figures, then every quantizer."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.conformance.digest import LIMITS, YARDSTICK, Line, cells, lines, percent, summarize
from benchmarks.conformance.readme import mxfp4_table
from benchmarks.conformance.table import Agreement, Comparison, Conformance


def render_markdown(report: Conformance) -> str:
    """Returns the markdown file."""
    parts = [
        "# Conformance of quantizers",
        "",
        summarize(report),
        "",
        LIMITS,
        "",
        "## MXFP4 on bf16 weights",
        "",
        f"Implementations in one row are one function on these weights; shares are against `{YARDSTICK}`. *Restated*: "
        "a rule re-typed from a description, whose own code was not run.",
        "",
        mxfp4_table(report),
        "## Against the published figures",
        "",
        "Percent that differs. The half width is of the 99 % interval of the difference of both shares, clustered by "
        "row; at this level one figure in a hundred falls outside by chance. Where two are published as one "
        "function, one difference contradicts it.",
        "",
        "| table | a | b | dtype | part | published | found | half width | | remark |",
        "|---|---|---|---|---|---:|---:|---:|---|---|",
        *(_published(row) for row in report.published),
        "",
        "## Every quantizer against its scheme",
        "",
        "Percent of scales / codes / values that differ from the scheme of the catalogue. A dash: not stored in the "
        "same form, or the dtype is not taken.",
        "",
        *_offers(report),
        "## Not checked",
        "",
        *([f"- {item.name}: {item.reason}" for item in report.unchecked] or ["Nothing."]),
        "",
        f"Made by `{report.command}` (seed {report.seed}, {report.rows:,} x {report.columns:,} weights, sha256 "
        f"{report.data_digest[:16]}; " + ", ".join(f"{name} {v}" for name, v in report.versions.items()) + ").",
    ]
    return "\n".join(parts) + "\n"


def _published(row: Comparison) -> str:
    verdict = f"**{row.agreement.value}**" if row.agreement is Agreement.DIFFERS else row.agreement.value
    width = "" if row.half_width is None else percent(row.half_width)
    texts = [row.table, row.a, row.b, row.dtype, row.part.value, percent(row.published), percent(row.found), width]
    return "| " + " | ".join([*texts, verdict, row.remark]) + " |"


def _offers(report: Conformance) -> Iterator[str]:
    for backend, rows in lines(report).items():
        restated = ", restated" if rows[0].restated else ""
        yield f"### {backend}{restated}"
        yield ""
        yield "| quantizer | scheme | float32 | bfloat16 |"
        yield "|---|---|---:|---:|"
        yield from (_offer(row) for row in rows)
        yield ""


def _offer(row: Line) -> str:
    scheme = f"{row.scheme} ({row.note})" if row.note else row.scheme
    return f"| {row.name} | {scheme} | {' / '.join(cells(row.fp32))} | {' / '.join(cells(row.bf16))} |"
