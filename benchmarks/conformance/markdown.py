"""The report in markdown: MXFP4 first, the published figures, then every quantizer."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.conformance.digest import LIMITS, Line, cells, families, implementations, lines, percent, summarize
from benchmarks.conformance.families import MXFP4, yardstick
from benchmarks.conformance.readme import absent_quantizers, mxfp4_table
from benchmarks.conformance.table import Agreement, Comparison, Conformance

PUBLISHED = (
    "Percent that differs. The interval is where the published share is expected with 99 %: clustered by row and "
    "pooled over the draws or, where one scale serves the tensor, between the smallest and the largest draw. One "
    "figure in a hundred falls outside by chance. Where two are published as one function, a difference contradicts "
    "it. The weights of the published figures are not at hand. Size and spread of those here were fitted to two of "
    "them, both of a single level of E4M3 scales: the share of other codes (77.9 %) and the relative error (0.01386, "
    "not in the table). Those two are no independent check."
)


def render_markdown(report: Conformance) -> str:
    """Returns the markdown file."""
    parts = [
        "# Conformance of quantizers",
        "",
        summarize(report),
        "",
        LIMITS,
        "",
        *(f"Caveat: {caveat}.\n" for caveat in report.caveats),
        "## MXFP4 on bf16 weights",
        "",
        f"Implementations in one row are one function on these weights; shares are against `{yardstick(MXFP4)}`. In "
        "italics: restated, re-typed from a description (`conventions:NAME`), whose own code was not run.",
        "",
        mxfp4_table(report),
        "## Other families on bf16 weights",
        "",
        "Quantizers in one row are one function on these weights, that of the scheme if one is named. Percent of "
        "scales / codes / values unlike the first scheme of the family.",
        "",
        *_families(report),
        "## Against the published figures",
        "",
        PUBLISHED,
        "",
        "| table | a | b | dtype | part | published | found | 99 % interval | draws | | remark |",
        "|---|---|---|---|---|---:|---:|---:|---:|---|---|",
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


def interval(row: Comparison) -> str:
    """Returns the interval of a figure in percent."""
    return "" if row.low is None or row.high is None else f"{percent(row.low)} to {percent(row.high)}"


def _families(report: Conformance) -> Iterator[str]:
    for family in families(report):
        if family == MXFP4:
            continue
        yield from (f"### {family}, against `{yardstick(family)}`", "")
        yield from ("| quantizers | scheme | differs |", "|---|---|---:|")
        for row in implementations(report, family, absent_quantizers(report.unchecked)):
            differing = " / ".join(cells(row.pair)) if row.pair is not None else "not checked"
            yield f"| {', '.join(row.names)} | {row.scheme or 'none'} | {differing} |"
        yield ""


def _published(row: Comparison) -> str:
    verdict = f"**{row.agreement.value}**" if row.agreement is Agreement.DIFFERS else row.agreement.value
    shares = [percent(row.published), percent(row.found), interval(row)]
    texts = [row.table, row.a, row.b, row.dtype, row.part.value, *shares, str(row.num_draws or "")]
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
