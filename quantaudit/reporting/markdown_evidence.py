"""The folded part of the markdown page: every gate, the alarms, the controls, and what explains them."""

from __future__ import annotations

from quantaudit.core.decision import Outcome
from quantaudit.core.diagnostic import Flip
from quantaudit.core.report import AuditReport, Witness
from quantaudit.reporting.flips import list_flips
from quantaudit.reporting.markdown_text import bullets, code, code_block, fold, prose, table
from quantaudit.reporting.quantity import write_bounds, write_quantity
from quantaudit.reporting.rows import ClauseRow, build_rows
from quantaudit.reporting.ruler import write_number
from quantaudit.reporting.sentences import collect_notes
from quantaudit.reporting.topics import WITHIN, DiagnosticRow, group_topics

_MOST_WITNESSES = 5
_MOST_FLIPS = 10
_COLUMNS = ("clause", "metric", "hi", "lo", "difference", "interval", "margin", "n that would decide", "outcome")


def fold_evidence(report: AuditReport) -> tuple[str, ...]:
    """Returns the folded sections, in reading order; empty where a report has nothing."""
    return (
        _gates(report),
        _alarms(report),
        _controls(report),
        _flips(report),
        _diagnostics(report),
        _ladder(report),
        _witnesses(report),
        _discrepancies(report),
        _listed("What would change it", report.verdict.would_change),
        _listed("Not examined", report.not_examined),
        _listed("Notes", collect_notes(report)),
        _environment(report),
    )


def write_clause_row(row: ClauseRow) -> tuple[str, ...]:
    """Returns the cells of one clause, as markdown, in the order of the full table."""
    outcome = f"**{row.word}**" if row.outcome is not Outcome.PASS else row.word
    remark = f" ({row.remark})" if row.remark else ""
    numbers = (row.hi, row.lo, row.difference, row.interval, row.margin, row.would_decide)
    return (code(row.name, in_table=True), prose(row.metric), *(prose(n) for n in numbers), f"{outcome}{remark}")


def _gates(report: AuditReport) -> str:
    rows = [write_clause_row(row) for row in build_rows(report.gates())]
    return fold(f"All {len(rows)} gates", table(_COLUMNS, rows)) if rows else ""


def _alarms(report: AuditReport) -> str:
    alarms = build_rows(report.alarms())
    if not alarms:
        return ""
    rows = [
        (
            code(r.name, in_table=True),
            prose(r.metric),
            *(prose(text) for text in (r.hi, r.lo, r.difference, r.floor)),
            r.word,
        )
        for r in alarms
    ]
    header = ("alarm", "metric", "hi", "lo", "difference", "floor", "state")
    return fold("Alarms", f"Shown, never deciding.\n\n{table(header, rows)}")


def _controls(report: AuditReport) -> str:
    if not report.controls:
        return fold("Controls", "None were run.")
    words = {Outcome.PASS: "holds", Outcome.FAIL: "**failed**", Outcome.UNDECIDED: "**undecided**"}
    lines = [f"{code(c.name)} {words[c.outcome]}: {prose(c.detail)}" for c in report.controls]
    holding = sum(c.outcome is Outcome.PASS for c in report.controls)
    return fold(f"Controls: {holding} of {len(lines)} hold", bullets(lines, is_markdown=True))


def _flips(report: AuditReport) -> str:
    if not report.flips:
        return ""
    shown = list_flips(report, most=_MOST_FLIPS).shown
    header = ("family", "direction", "prompt", "expected", "hi", "lo")
    more = len(report.flips) - len(shown)
    tail = f"\n\nAnd {more:,} more in the report." if more else ""
    return fold(f"{len(report.flips):,} changed answers", table(header, [_flip(flip) for flip in shown]) + tail)


def _flip(flip: Flip) -> tuple[str, ...]:
    texts = (flip.prompt, flip.expected, flip.hi_response, flip.lo_response)
    change = prose(flip.change) + (" (text redacted)" if flip.is_redacted else "")
    return (prose(flip.family), change, *(code(text, in_table=True) for text in texts))


def _diagnostics(report: AuditReport) -> str:
    groups = [group for group in group_topics(report, ()) if group.rows]
    if not groups:
        return ""
    header = ("topic", "what", "hi", "lo", "value", "interval", "floor")
    rows = [_diagnostic(group.title, row) for group in groups for row in group.rows]
    return fold(f"{len(rows)} diagnostics", f"They explain and never decide.\n\n{table(header, rows)}")


def _diagnostic(topic: str, row: DiagnosticRow) -> tuple[str, ...]:
    title = prose(row.title) + (f" ({prose(row.unit)})" if row.unit else "")
    floor = f"{prose(row.floor)} ({WITHIN})" if row.is_within else prose(row.floor)
    return (topic, title, *(prose(text) for text in (row.hi, row.lo, row.value, row.interval)), floor)


def _ladder(report: AuditReport) -> str:
    ladder = report.ladder
    if ladder is None:
        return ""
    rows = [
        (
            code(rung.scheme, in_table=True),
            str(rung.bits),
            prose(write_quantity(rung.nll.value, "nats", is_difference=True)),
            prose(write_bounds(rung.nll.interval, "nats", is_difference=True)),
            prose(write_quantity(rung.accuracy.value, "share", is_difference=True)),
            prose(write_bounds(rung.accuracy.interval, "share", is_difference=True)),
        )
        for rung in ladder.rungs
    ]
    header = ("scheme", "bits", "loss of likelihood, nats", "interval", "loss of accuracy", "interval")
    word = "monotone" if ladder.is_monotone else "NOT MONOTONE"
    return fold(f"Ladder of bit widths: {word}", f"{prose(ladder.reason)}\n\n{table(header, rows)}")


def _witnesses(report: AuditReport) -> str:
    shown = report.witnesses[:_MOST_WITNESSES]
    if not shown:
        return ""
    header = ("family", "prompt", "expected", "hi", "lo", "margin, nats", "change")
    more = len(report.witnesses) - len(shown)
    tail = f"\n\nAnd {more} more in the report." if more else ""
    return fold("Worst witnesses", table(header, [_witness(w) for w in shown]) + tail)


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
    return fold("Weights that differ", table(("weight", "hi", "lo", "hi bits", "lo bits"), rows))


def _listed(title: str, lines: tuple[str, ...]) -> str:
    return fold(title, bullets(lines)) if lines else ""


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
        ("contract digest", code(report.contract.digest(), in_table=True)),
        ("probes", prose(f"{probes.name}, {probes.num_probes:,} probes")),
        ("probes digest", code(probes.probes_digest, in_table=True)),
        ("hi weights", code(report.hi.weights_digest, in_table=True)),
        ("lo weights", code(report.lo.weights_digest, in_table=True)),
        ("report", code(report.report_digest(), in_table=True)),
    ]
    facts = table(("what", "value"), rows)
    return fold("Environment, digests, and how to repeat it", f"{facts}\n\n{code_block(report.run.command)}")
