"""The SARIF log has what the specification requires, a rule for everything, and a result for what does not hold.

Required properties: sections 3.13.2 (version), 3.13.4 (runs), 3.14.6 (tool), 3.18.2 (driver), 3.19.8 (name), 3.49.3
(rule id, unique by 3.19.23), 3.27.5 to 3.27.12 (rule reference, level, message), 3.11 (message text), 3.20.14
(executionSuccessful), 3.58.3 (notification message), 3.4.3 (artifact uri, a relative or absolute reference).
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias, cast

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import Json
from quantaudit.reporting.sarif import render_sarif

Object: TypeAlias = dict[str, Json]

SAMPLES = ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile"]
LEVELS = {"none", "note", "warning", "error"}
URI = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?#%-]+")


def object_of(value: Json) -> Object:
    assert isinstance(value, dict)
    return value


def objects_of(value: Json) -> list[Object]:
    assert isinstance(value, list)
    return [object_of(item) for item in value]


def run_of(report: AuditReport) -> Object:
    log = object_of(cast(Json, json.loads(render_sarif(report))))
    assert log["version"] == "2.1.0" and str(log["$schema"]).startswith("https://")
    (run,) = objects_of(log["runs"])
    return run


def rules_of(run: Object) -> list[Object]:
    return objects_of(object_of(object_of(run["tool"])["driver"])["rules"])


@pytest.mark.parametrize("name", SAMPLES)
def test_it_has_what_the_specification_requires(name: str, request: pytest.FixtureRequest) -> None:
    run = run_of(request.getfixturevalue(name))
    driver = object_of(object_of(run["tool"])["driver"])
    assert driver["name"] == "quantaudit"
    rules = rules_of(run)
    ids = [rule["id"] for rule in rules]
    assert all(isinstance(i, str) and i for i in ids) and len(set(ids)) == len(ids)
    for result in objects_of(run["results"]):
        index = result["ruleIndex"]
        assert isinstance(index, int) and ids[index] == result["ruleId"]
        assert result["level"] in LEVELS and object_of(result["message"])["text"]
        assert "kind" not in result  # anything but "fail", the default, would forbid a level
        for location in (*objects_of(result["locations"]), *objects_of(result.get("relatedLocations", []))):
            place = object_of(object_of(location["physicalLocation"])["artifactLocation"])
            assert URI.fullmatch(str(place["uri"]))
    for invocation in objects_of(run["invocations"]):
        assert isinstance(invocation["executionSuccessful"], bool)
        for notification in objects_of(invocation["toolExecutionNotifications"]):
            assert notification["level"] in LEVELS and object_of(notification["message"])["text"]


def test_every_gate_and_control_is_a_rule_and_no_alarm_is(admitted: AuditReport) -> None:
    gates = dict.fromkeys(f"gate/{gate.clause.name}" for gate in admitted.gates())
    controls = [f"control/{control.name}" for control in admitted.controls]
    assert [rule["id"] for rule in rules_of(run_of(admitted))] == [*gates, *controls]


def test_what_holds_has_no_result(admitted: AuditReport) -> None:
    assert run_of(admitted)["results"] == []


def test_a_failure_is_an_error_and_an_open_gate_a_warning(rejected: AuditReport, undecided: AuditReport) -> None:
    failed = [gate for gate in rejected.gates() if gate.decision.outcome is Outcome.FAIL]
    results = objects_of(run_of(rejected)["results"])
    assert len(results) == len(failed) and {result["level"] for result in results} == {"error"}
    for gate, result in zip(failed, results, strict=True):
        text = str(object_of(result["message"])["text"])
        assert text.startswith(f"{gate.name} fails: {gate.decision.reason}")
    results = objects_of(run_of(undecided)["results"])
    assert [(r["ruleId"], r["level"]) for r in results] == [
        ("gate/task", "warning"),
        ("gate/task", "warning"),
        ("control/sensitivity", "warning"),
    ]


def test_a_result_lies_at_lo_and_names_hi(rejected: AuditReport) -> None:
    result = objects_of(run_of(rejected)["results"])[0]
    places = [objects_of(result[key])[0] for key in ("locations", "relatedLocations")]
    uris = [object_of(object_of(place["physicalLocation"])["artifactLocation"])["uri"] for place in places]
    assert uris == ["hi%20under%20recipe%20int2", "embedded%20model"]


def test_fingerprints_stay_when_numbers_move(rejected: AuditReport) -> None:
    moved = rejected.model_copy(update={"lo": rejected.lo.model_copy(update={"weights_digest": "00" * 32})})
    prints = [[r["partialFingerprints"] for r in objects_of(run_of(x)["results"])] for x in (rejected, moved)]
    assert prints[0] == prints[1]
    assert len({json.dumps(p) for p in prints[0]}) == len(prints[0])


def test_the_exit_code_and_the_digests_are_told(rejected: AuditReport) -> None:
    run = run_of(rejected)
    (invocation,) = objects_of(run["invocations"])
    assert invocation["exitCode"] == 3 and invocation["commandLine"] == rejected.run.command
    assert object_of(run["properties"])["report_digest"] == rejected.report_digest()
