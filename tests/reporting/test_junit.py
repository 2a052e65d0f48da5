"""CI reads the gates as test cases: a failure fails, an undecided gate is skipped, an alarm is only told."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.reporting.junit import render_junit

SAMPLES = ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile"]


def suite_of(report: AuditReport) -> ElementTree.Element:
    root = ElementTree.fromstring(render_junit(report).encode())
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    return suite


@pytest.mark.parametrize("name", SAMPLES)
def test_the_counts_are_those_of_the_cases(name: str, request: pytest.FixtureRequest) -> None:
    suite = suite_of(request.getfixturevalue(name))
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{tag}"))
    assert all({"name", "classname", "time"} <= set(case.attrib) for case in cases)


def test_every_gate_is_a_case_and_no_alarm_is(admitted: AuditReport) -> None:
    suite = suite_of(admitted)
    assert [case.attrib["name"] for case in suite.findall("testcase")] == [gate.name for gate in admitted.gates()]
    out = str(suite.findtext("system-out"))
    assert "alarm expert-set-agreement: ALARM; " in out and "alarm load-drift: quiet; " in out
    assert "control sensitivity: pass; A planted fault makes 20 of 20 gates reject." in out
    assert "not examined: Contexts longer than 56 bytes." in out


def test_a_failed_gate_is_a_failure_with_its_reason(rejected: AuditReport) -> None:
    failed = [gate for gate in rejected.gates() if gate.decision.outcome is Outcome.FAIL]
    failures = suite_of(rejected).findall("testcase/failure")
    assert [f.attrib["message"] for f in failures] == [gate.decision.reason for gate in failed]
    assert all("margin" in str(f.text) for f in failures)


def test_an_undecided_gate_is_skipped_with_its_reason(undecided: AuditReport) -> None:
    open_gates = [gate for gate in undecided.gates() if gate.decision.outcome is Outcome.UNDECIDED]
    skipped = suite_of(undecided).findall("testcase/skipped")
    assert [s.attrib["message"] for s in skipped] == [f"undecided: {gate.decision.reason}" for gate in open_gates]


def test_a_control_that_does_not_hold_is_an_error(undecided: AuditReport, admitted: AuditReport) -> None:
    (error,) = suite_of(undecided).findall("testcase/error")
    assert error.attrib["message"] == "sensitivity: task[two-step] did not reject."
    assert suite_of(admitted).find("testcase/error") is None


def test_nothing_decided_is_not_green(undecided: AuditReport) -> None:
    nothing = undecided.model_copy(update={"clauses": (), "controls": ()})
    (error,) = suite_of(nothing).findall("testcase/error")
    assert "nothing was decided" in error.attrib["message"]


def test_the_digests_are_properties(admitted: AuditReport) -> None:
    properties = {p.attrib["name"]: p.attrib["value"] for p in suite_of(admitted).findall("properties/property")}
    assert properties["report_digest"] == admitted.report_digest()
    assert properties["verdict"] == "ADMIT" and properties["command"] == admitted.run.command


def test_what_xml_cannot_hold_is_shown(admitted: AuditReport) -> None:
    gate = admitted.clauses[2]
    reason = "a\x00b\x1b\ufffe\ud800 <&\"'> c"
    told = gate.model_copy(update={"decision": gate.decision.model_copy(update={"reason": reason})})
    suite = suite_of(admitted.model_copy(update={"clauses": (told,)}))
    assert "a\\x00b\\x1b?\\ud800 <&\"'> c" in str(suite.findtext("testcase/system-out"))


def test_the_time_is_an_iso_time_without_a_zone(admitted: AuditReport) -> None:
    assert suite_of(admitted).attrib["timestamp"] == "2030-01-02T03:04:05"
