"""Reports are written whole or not at all, and read back as untrusted input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.reporting import html, read
from quantaudit.reporting.read import read_report
from quantaudit.reporting.stored import DIGEST_KEY, to_stored_json
from quantaudit.reporting.write import write_reports


def stored(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", ["admitted", "rejected", "unbounded", "sparse", "hostile"])
def test_what_is_written_is_read(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    report: AuditReport = request.getfixturevalue(name)
    paths = write_reports(report, tmp_path / "new" / "folder", [])
    assert paths == {"json": tmp_path / "new" / "folder" / "report.json"}
    assert read_report(paths["json"]) == report
    assert read_report(paths["json"]).report_digest() == report.report_digest()


def test_every_format_lies_beside_the_json(admitted: AuditReport, tmp_path: Path) -> None:
    paths = write_reports(admitted, tmp_path, ["html", "md", "junit", "sarif"])
    assert {name: path.name for name, path in paths.items()} == {
        "json": "report.json",
        "html": "report.html",
        "md": "report.md",
        "junit": "report.junit.xml",
        "sarif": "report.sarif",
    }
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {"report.json", "report.md", "report.html", "report.junit.xml", "report.sarif", "report.forest.svg"}
    assert not [name for name in left if name.startswith(".")]


def test_an_unknown_format_writes_nothing(admitted: AuditReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'pdf'; expected one of json, md, html, junit, sarif"):
        write_reports(admitted, tmp_path / "out", ["html", "pdf"])
    assert not (tmp_path / "out").exists()


def test_a_failing_view_leaves_no_file(admitted: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "build_charts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_reports(admitted, tmp_path / "out", ["html"])
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nope.json cannot be read: no such file"):
        read_report(tmp_path / "nope.json")


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_report(tmp_path)


def test_another_schema_version_is_named(admitted: AuditReport, tmp_path: Path) -> None:
    value = {**json.loads(admitted.to_json()), "schema_version": 2}
    with pytest.raises(
        InputError, match="schema version 2, newer than .*; expected schema version 1; update quantaudit"
    ):
        read_report(stored(tmp_path, json.dumps(value)))


def test_a_version_that_equals_but_is_not_the_number_is_refused(admitted: AuditReport, tmp_path: Path) -> None:
    value = {**json.loads(admitted.to_json()), "schema_version": True}
    with pytest.raises(InputError):
        read_report(stored(tmp_path, json.dumps(value)))


def test_a_truncated_file_is_refused(admitted: AuditReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not strict JSON"):
        read_report(stored(tmp_path, admitted.to_json()[:5000]))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"kind": NaN}', "a bare NaN"),
        ("[1, 2]", "it is not an audit report"),
        ("null", "it is not an audit report"),
        ('{"kind": "manifest", "schema_version": 1}', "it is not an audit report"),
        ('{"kind": "audit", "schema_version": 1}', "verdict: Field required .and 9 more faults"),
        ("", "not strict JSON"),
        ("1" * 5000, "not strict JSON"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"\x80\x04.", "byte 0 is not UTF-8"),
    ],
    ids=range(11),
)
def test_hostile_files_get_one_message(text: str | bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=fault):
        read_report(stored(tmp_path, text))


def test_an_unknown_key_is_named(admitted: AuditReport, tmp_path: Path) -> None:
    value = {**json.loads(to_stored_json(admitted)), "blessed": True}
    with pytest.raises(InputError, match="blessed: Extra inputs are not permitted"):
        read_report(stored(tmp_path, json.dumps(value)))


def test_a_lone_surrogate_is_refused(admitted: AuditReport, tmp_path: Path) -> None:
    text = to_stored_json(admitted).replace("Load", "\\ud800", 1)
    with pytest.raises(InputError):
        read_report(stored(tmp_path, text))


def test_a_large_file_is_refused_before_it_is_parsed(
    admitted: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = admitted.to_json()
    monkeypatch.setattr(read, "MAX_BYTES", len(text) - 1)
    monkeypatch.setattr(read, "_parse", lambda *_: 1 / 0)
    with pytest.raises(InputError, match="larger than"):
        read_report(stored(tmp_path, text))


def test_the_digest_is_at_the_root(unbounded: AuditReport) -> None:
    value = json.loads(to_stored_json(unbounded))
    assert list(value)[:3] == ["schema_version", "kind", DIGEST_KEY]
    assert value[DIGEST_KEY] == unbounded.report_digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"admission": "ADMIT"', '"admission": "REJECT"'),
        ('"margin": 0.02', '"margin": 0.2'),
        ('"outcome": "pass"', '"outcome": "fail"'),
        ('"title": "Load"', '"title": "Laod"'),
    ],
)
def test_an_edited_report_is_refused(old: str, new: str, admitted: AuditReport, tmp_path: Path) -> None:
    text = to_stored_json(admitted)
    assert old in text
    with pytest.raises(
        InputError, match=r"was changed after it was written: .*; expected the digest .*; take the orig"
    ):
        read_report(stored(tmp_path, text.replace(old, new, 1)))


def test_a_report_without_its_digest_is_refused(admitted: AuditReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no report_digest; expected .*; run the audit again"):
        read_report(stored(tmp_path, admitted.to_json()))


def test_what_the_digest_leaves_out_may_change(admitted: AuditReport, tmp_path: Path) -> None:
    value = json.loads(to_stored_json(admitted))
    value["run"]["host_load"] = 7.0
    assert read_report(stored(tmp_path, json.dumps(value))).run.host_load == 7.0


def test_layout_and_order_of_the_file_are_free(admitted: AuditReport, tmp_path: Path) -> None:
    value = json.loads(to_stored_json(admitted))
    text = json.dumps(dict(reversed(value.items())), separators=(",", ":"))
    assert read_report(stored(tmp_path, text)) == admitted
