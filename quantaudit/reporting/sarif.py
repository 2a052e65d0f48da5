"""SARIF 2.1.0 for code scanning: a rule a gate and a control, a result for each that failed or was not decided.

What does not hold is an error, what was not decided a warning. The location is the source of lo as it was given, hi
beside it as a related one; a control is about the run and is located at hi.

Source: OASIS Static Analysis Results Interchange Format 2.1.0, sections 3.13 (log), 3.14 (run), 3.27 (result).
"""

from __future__ import annotations

import json
import urllib.parse

from quantaudit.core.contract import Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, ClauseResult, Control
from quantaudit.core.serial import Json, digest_of
from quantaudit.core.verdict import Admission
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.rows import build_rows
from quantaudit.reporting.sentences import verdict_reason

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Outcome.FAIL: "error", Outcome.UNDECIDED: "warning"}


def render_sarif(report: AuditReport) -> str:
    """Returns the log, indented."""
    gates = report.gates()
    rules = _rules(report)
    places = {str(rule["id"]): i for i, rule in enumerate(rules)}
    results = [_gate_result(report, gate, places) for gate in gates if gate.decision.outcome in _LEVELS]
    results += [_control_result(report, c, places) for c in report.controls if c.outcome in _LEVELS]
    driver: dict[str, Json] = {
        "name": "quantaudit",
        "version": report.environment.quantaudit,
        "semanticVersion": report.environment.quantaudit,
        "rules": [*rules],
    }
    run: dict[str, Json] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"quantaudit/{show_hidden(report.contract.name)}/"},
        "invocations": [_invocation(report)],
        "results": [*results],
        "properties": _digests(report),
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rules(report: AuditReport) -> list[dict[str, Json]]:
    """Returns one rule a clause that gates (its families share it), and one a control."""
    clauses = {c.clause.name: c.clause for c in report.clauses if c.clause.kind is Kind.GATE}
    rules = [
        _rule(
            f"gate/{clause.name}",
            f"{clause.stage.value}: {clause.observer} within its margin of {clause.margin:g}"
            if clause.margin is not None
            else f"{clause.stage.value}: {clause.observer}",
            clause.reason,
        )
        for clause in clauses.values()
    ]
    controls = dict.fromkeys(control.name for control in report.controls)
    return rules + [_rule(f"control/{name}", f"the control {name} holds", "") for name in controls]


def _rule(identity: str, short: str, full: str) -> dict[str, Json]:
    rule: dict[str, Json] = {
        "id": show_hidden(identity),
        "shortDescription": {"text": show_hidden(short)},
        "defaultConfiguration": {"level": "error"},
    }
    if full:
        rule["fullDescription"] = {"text": show_hidden(full)}
    return rule


def _gate_result(report: AuditReport, gate: ClauseResult, places: dict[str, int]) -> dict[str, Json]:
    (row,) = build_rows((gate,))
    state = "fails" if gate.decision.outcome is Outcome.FAIL else "is undecided"
    numbers = f"hi {row.hi}, lo {row.lo}, damage {row.difference} {row.interval}, margin {row.margin}"
    text = f"{gate.name} {state}: {gate.decision.reason} ({numbers})"
    result = _result(f"gate/{gate.clause.name}", gate.name, gate.decision.outcome, text, places)
    result["locations"] = [_location(report.lo.source, gate.name)]
    result["relatedLocations"] = [{**_location(report.hi.source, gate.name), "message": {"text": "the reference"}}]
    return result


def _control_result(report: AuditReport, control: Control, places: dict[str, int]) -> dict[str, Json]:
    state = "failed" if control.outcome is Outcome.FAIL else "is undecided"
    text = f"The control {control.name} {state}: {control.detail}"
    result = _result(f"control/{control.name}", control.name, control.outcome, text, places)
    result["locations"] = [_location(report.hi.source, control.name)]
    return result


def _result(identity: str, name: str, outcome: Outcome, text: str, places: dict[str, int]) -> dict[str, Json]:
    shown = show_hidden(identity)
    return {
        "ruleId": shown,
        "ruleIndex": places[shown],
        "level": _LEVELS[outcome],
        "message": {"text": show_hidden(text)},
        "partialFingerprints": {"gate/v1": digest_of([identity, name])},
    }


def _location(source: str, name: str) -> dict[str, Json]:
    """Returns where a finding lies: the source as given, as a relative reference, and the name of the clause in it."""
    place: Json = {"artifactLocation": {"uri": urllib.parse.quote(source, errors="backslashreplace")}}
    return {"physicalLocation": place, "logicalLocations": [{"fullyQualifiedName": show_hidden(name)}]}


def _invocation(report: AuditReport) -> dict[str, Json]:
    verdict = report.verdict
    level = "note" if verdict.admission is Admission.ADMIT else "warning"
    text = show_hidden(f"{verdict.admission.value}: {verdict_reason(verdict)}")
    return {
        "executionSuccessful": True,
        "commandLine": show_hidden(report.run.command),
        "exitCode": int(verdict.exit_code),
        "toolExecutionNotifications": [{"level": level, "message": {"text": text}}],
    }


def _digests(report: AuditReport) -> dict[str, Json]:
    return {
        "verdict": report.verdict.admission.value,
        "report_digest": report.report_digest(),
        "probes_digest": report.probes.probes_digest,
        "contract_digest": report.contract.digest(),
        "hi_weights_digest": report.hi.weights_digest,
        "lo_weights_digest": report.lo.weights_digest,
    }
