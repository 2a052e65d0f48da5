"""JUnit XML for CI: a gate is a test case. FAIL is a failure, UNDECIDED is skipped, each with its reason.

Alarms and controls are no test cases, since they do not decide alone; they stand in `system-out`. A control that does
not hold, or a contract without a gate, is an error: CI must not turn green on a run that proves nothing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, ClauseResult, Control
from quantaudit.core.verdict import Admission
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.rows import ClauseRow, build_rows
from quantaudit.reporting.sentences import collect_notes, verdict_reason

_SUITE = "quantaudit"
_NOT_XML = re.compile("[\ufffe\uffff]")


def render_junit(report: AuditReport) -> str:
    """Returns the XML document."""
    gates = report.gates()
    broken = [c for c in report.controls if c.outcome is not Outcome.PASS]
    has_error = bool(broken) or (not gates and report.verdict.admission is not Admission.ADMIT)
    counts = {
        "tests": len(gates) + has_error,
        "failures": sum(g.decision.outcome is Outcome.FAIL for g in gates),
        "errors": int(has_error),
        "skipped": sum(g.decision.outcome is Outcome.UNDECIDED for g in gates),
    }
    totals = {key: str(count) for key, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": _SUITE, **totals, "time": f"{report.run.seconds:.3f}"})
    suite = ElementTree.SubElement(root, "testsuite", _suite(report, totals))
    _add_properties(suite, report)
    for gate, row in zip(gates, build_rows(gates), strict=True):
        _add_gate(suite, report, gate, row)
    if has_error:
        _add_error(suite, report, broken)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = "\n".join(_clean(line) for line in _lines(report))
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(report: AuditReport, totals: dict[str, str]) -> dict[str, str]:
    name = _clean(f"{report.contract.name}: {report.lo.label} against {report.hi.label}")
    started = re.sub(r"(Z|[+-]\d\d:\d\d)$", "", report.run.started)  # the format has no time zone
    return {"name": name, **totals, "time": f"{report.run.seconds:.3f}", "timestamp": _clean(started)}


def _add_properties(suite: ElementTree.Element, report: AuditReport) -> None:
    properties = ElementTree.SubElement(suite, "properties")
    facts = {
        "verdict": report.verdict.admission.value,
        "report_digest": report.report_digest(),
        "probes_digest": report.probes.probes_digest,
        "contract_digest": report.contract.digest(),
        "hi_weights_digest": report.hi.weights_digest,
        "lo_weights_digest": report.lo.weights_digest,
        "command": report.run.command,
    }
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": _clean(value)})


def _add_gate(suite: ElementTree.Element, report: AuditReport, gate: ClauseResult, row: ClauseRow) -> None:
    place = {"classname": _clean(f"{report.contract.name}.{gate.clause.stage.value}"), "name": _clean(gate.name)}
    case = ElementTree.SubElement(suite, "testcase", {**place, "time": "0"})
    reason, numbers = _clean(gate.decision.reason), _clean(_numbers(row))
    if gate.decision.outcome is Outcome.FAIL:
        ElementTree.SubElement(case, "failure", {"type": "gate", "message": reason}).text = numbers
    elif gate.decision.outcome is Outcome.UNDECIDED:
        ElementTree.SubElement(case, "skipped", {"message": f"undecided: {reason}"})
        ElementTree.SubElement(case, "system-out").text = numbers
    else:
        ElementTree.SubElement(case, "system-out").text = f"{reason}\n{numbers}"


def _add_error(suite: ElementTree.Element, report: AuditReport, broken: list[Control]) -> None:
    message = "; ".join(f"{c.name}: {c.detail}" for c in broken) or "there is no gate, so nothing was decided"
    place = {"classname": _clean(f"{report.contract.name}.controls"), "name": "controls hold", "time": "0"}
    case = ElementTree.SubElement(suite, "testcase", place)
    ElementTree.SubElement(case, "error", {"type": "control", "message": _clean(message)})


def _numbers(row: ClauseRow) -> str:
    return f"hi {row.hi}, lo {row.lo}, damage {row.difference} {row.interval}, margin {row.margin}, floor {row.floor}"


def _lines(report: AuditReport) -> list[str]:
    lines = [f"{report.verdict.admission.value}: {verdict_reason(report.verdict)}"]
    lines += [f"alarm {row.name}: {row.word}; {_numbers(row)}" for row in build_rows(report.alarms())]
    lines += [f"control {c.name}: {c.outcome.value}; {c.detail}" for c in report.controls]
    lines += [f"not examined: {line}" for line in report.not_examined]
    lines += [f"note: {line}" for line in collect_notes(report)]
    lines.append(f"changed answers: {len(report.flips):,}")
    return lines


def _clean(text: str) -> str:
    """Returns the text without what XML cannot hold."""
    return _NOT_XML.sub("?", show_hidden(text))
