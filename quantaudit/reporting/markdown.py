"""The markdown page for a pull request: the verdict, one table, and what stands behind it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, Witness
from quantaudit.core.serial import write_atomically
from quantaudit.reporting.charts import Chart, build_charts, to_svg
from quantaudit.reporting.markdown_text import code, code_block, prose, table
from quantaudit.reporting.palette import LIGHT
from quantaudit.reporting.rows import ClauseRow, build_rows
from quantaudit.reporting.ruler import write_number
from quantaudit.reporting.sentences import SAFETY_WARNING, collect_notes, verdict_reason, warns_about_safety
from quantaudit.reporting.worst import group_families, worst_of

_MOST_WITNESSES = 5
_MOST_DECIDING = 6
_COLUMNS = ("clause", "metric", "hi", "lo", "difference", "interval", "margin", "n that would decide", "outcome")


class Picture(NamedTuple):
    """A chart beside the page: what it shows and its file, relative to the page."""

    title: str
    file: str


def render_markdown(report: AuditReport, *, pictures: tuple[Picture, ...] = ()) -> str:
    """Returns the page.

    Args:
        report: The report to show.
        pictures: Charts that lie beside the page.
    """
    sections = [
        _verdict(report),
        _gates(report),
        "\n\n".join(f"![{prose(p.title)}]({p.file})" for p in pictures),
        _alarms(report),
        _controls(report),
        _witnesses(report),
        _discrepancies(report),
        _listed("Not examined", report.not_examined, empty="The report does not say."),
        _listed("Notes", collect_notes(report), empty=""),
        _environment(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def write_markdown(report: AuditReport, path: Path) -> tuple[Path, ...]:
    """Writes the page and its charts beside it, each whole or not at all; the page comes last.

    Args:
        report: The report to show.
        path: The page, such as `report.md`; the charts are `report.forest.svg` and so on.

    Returns:
        The files written, the page first.
    """
    charts = _named(path.stem, build_charts(report, LIGHT).all())
    pages = {file: to_svg(chart, ground=LIGHT.card, has_title=True).encode() for file, chart in charts.items()}
    text = render_markdown(report, pictures=tuple(Picture(chart.title, file) for file, chart in charts.items()))
    for file, data in pages.items():
        write_atomically(path.parent / file, data)
    write_atomically(path, text.encode())
    return (path, *(path.parent / file for file in pages))


def _named(stem: str, charts: tuple[Chart, ...]) -> dict[str, Chart]:
    """Returns the charts by file name; a name that is taken gets a number."""
    named: dict[str, Chart] = {}
    for chart in charts:
        file = f"{stem}.{chart.name}.svg"
        named[file if file not in named else f"{stem}.{chart.name}-{len(named)}.svg"] = chart
    return named


def _verdict(report: AuditReport) -> str:
    verdict = report.verdict
    lines = [f"## {verdict.admission.value}: {prose(report.lo.label)} against {prose(report.hi.label)}"]
    lines.append(prose(verdict_reason(verdict)))
    if verdict.deciding:
        more = len(verdict.deciding) - _MOST_DECIDING
        named = ", ".join(code(name) for name in verdict.deciding[:_MOST_DECIDING])
        lines.append(f"Decided by {named}{f' and {more} more' if more > 0 else ''}.")
    if warns_about_safety(report):
        lines.append(f"> **{SAFETY_WARNING}**")
    if verdict.would_change:
        lines.append("What would change it:\n\n" + _bullets(verdict.would_change))
    return "\n\n".join(lines)


def _gates(report: AuditReport) -> str:
    gates = report.gates()
    if not gates:
        return ""
    groups = group_families(gates)
    short = table(_COLUMNS, [_cells(row) for row in build_rows(tuple(worst_of(group) for group in groups))])
    if len(groups) == len(gates):
        return f"### Gates\n\n{short}"
    every = table(_COLUMNS, [_cells(row) for row in build_rows(gates)])
    folded = f"<details>\n<summary>All {len(gates)} gates</summary>\n\n{every}\n\n</details>"
    return f"### Gates\n\nOne line a clause; of its families, the worst.\n\n{short}\n\n{folded}"


def _cells(row: ClauseRow) -> tuple[str, ...]:
    outcome = f"**{row.word}**" if row.outcome is not Outcome.PASS else row.word
    remark = f" ({row.remark})" if row.remark else ""
    numbers = (row.hi, row.lo, row.difference, row.interval, row.margin, row.would_decide)
    return (code(row.name, in_table=True), prose(row.metric), *(prose(n) for n in numbers), f"{outcome}{remark}")


def _alarms(report: AuditReport) -> str:
    alarms = report.alarms()
    if not alarms:
        return ""
    rows = [
        (
            code(r.name, in_table=True),
            prose(r.metric),
            prose(r.hi),
            prose(r.lo),
            prose(r.difference),
            prose(r.floor),
            r.word,
        )
        for r in build_rows(alarms)
    ]
    header = ("alarm", "metric", "hi", "lo", "difference", "floor", "state")
    return f"### Alarms\n\nShown, never deciding.\n\n{table(header, rows)}"


def _controls(report: AuditReport) -> str:
    if not report.controls:
        return "### Controls\n\nNone were run."
    words = {Outcome.PASS: "holds", Outcome.FAIL: "**failed**", Outcome.UNDECIDED: "**undecided**"}
    lines = [f"- {code(c.name)} {words[c.outcome]}: {prose(c.detail)}" for c in report.controls]
    return "### Controls\n\n" + "\n".join(lines)


def _witnesses(report: AuditReport) -> str:
    shown = report.witnesses[:_MOST_WITNESSES]
    if not shown:
        return ""
    header = ("family", "prompt", "expected", "hi", "lo", "margin, nats", "change")
    more = len(report.witnesses) - len(shown)
    tail = f"\n\nAnd {more} more in the report." if more else ""
    return f"### Worst witnesses\n\n{table(header, [_witness(w) for w in shown])}{tail}"


def _witness(witness: Witness) -> tuple[str, ...]:
    texts = (witness.prompt, witness.expected, witness.hi_response, witness.lo_response)
    margins = f"{write_number(witness.hi_margin)} to {write_number(witness.lo_margin)}"
    change = prose(witness.change) + (" (text redacted)" if witness.is_redacted else "")
    return (prose(witness.family), *(code(text, in_table=True) for text in texts), margins, change)


def _discrepancies(report: AuditReport) -> str:
    if not report.discrepancies:
        return ""
    rows = [
        (
            code(f"{d.tensor}{list(d.coordinate)}", in_table=True),
            write_number(d.hi_value, digits=6),
            write_number(d.lo_value, digits=6),
            code(d.hi_bits, in_table=True),
            code(d.lo_bits, in_table=True),
        )
        for d in report.discrepancies[:_MOST_WITNESSES]
    ]
    return "### Weights that differ\n\n" + table(("weight", "hi", "lo", "hi bits", "lo bits"), rows)


def _listed(title: str, lines: tuple[str, ...], *, empty: str) -> str:
    body = _bullets(lines) if lines else empty
    return f"### {title}\n\n{body}" if body else ""


def _bullets(lines: tuple[str, ...]) -> str:
    return "\n".join(f"- {prose(line)}" for line in lines)


def _environment(report: AuditReport) -> str:
    e, probes = report.environment, report.probes
    versions = f"quantaudit {e.quantaudit}, Python {e.python}, torch {e.torch}, {e.device} ({e.cpu_capability})"
    execution = (
        f"{e.threads} thread{'' if e.threads == 1 else 's'}, batch {e.batch_size}, {e.compute_dtype}, {e.fused_kernels}"
    )
    rows = [
        ("environment", prose(versions)),
        ("execution", prose(execution)),
        ("contract", code(report.contract.name, in_table=True)),
        ("probes", prose(f"{probes.name}, {probes.num_probes:,} probes")),
        ("probes digest", code(probes.probes_digest, in_table=True)),
        ("hi weights", code(report.hi.weights_digest, in_table=True)),
        ("lo weights", code(report.lo.weights_digest, in_table=True)),
        ("report", code(report.report_digest(), in_table=True)),
    ]
    facts = table(("what", "value"), rows)
    return f"### Environment and digests\n\n{facts}\n\nTo repeat it:\n\n{code_block(report.run.command)}"
