"""Earlier audits are counted by contract and probes; whatever else lies beside them is passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quantaudit.core.report import AuditReport
from quantaudit.evaluation.previous import note_earlier_audits
from tests.evaluation.subjects import audit


@pytest.fixture(scope="module")
def report(audited: Path) -> AuditReport:
    return audit(audited / "plain", lo=audited / "packed")


def keep(report: AuditReport, folder: Path) -> AuditReport:
    """Writes the report as a run does."""
    noted = note_earlier_audits(report, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(noted.to_json())
    return noted


def count(report: AuditReport, folder: Path) -> int:
    return note_earlier_audits(report, folder).run.earlier_audits


def test_each_run_in_a_new_folder_counts_those_before_it(report: AuditReport, tmp_path: Path) -> None:
    assert count(report, tmp_path / "not" / "there") == 0
    counts = [keep(report, tmp_path / "runs" / str(i)).run.earlier_audits for i in range(4)]
    assert counts == [0, 1, 2, 3]


def test_repeating_into_one_folder_is_counted_although_it_overwrites(
    report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [keep(report, Path("out")).run.earlier_audits for _ in range(3)] == [0, 1, 2]
    assert count(report, Path("beside")) == 3
    assert count(report, tmp_path / "." / "out") == 3


def test_other_contracts_and_probes_do_not_count(report: AuditReport, tmp_path: Path) -> None:
    keep(report.model_copy(update={"contract": report.contract.model_copy(update={"min_probes": 7})}), tmp_path / "a")
    keep(
        report.model_copy(update={"probes": report.probes.model_copy(update={"probes_digest": "0" * 64})}),
        tmp_path / "b",
    )
    assert count(report, tmp_path / "c") == 0
    other_deployment = report.lo.model_copy(update={"weights_digest": "1" * 64})
    keep(report.model_copy(update={"lo": other_deployment}), tmp_path / "d")
    assert count(report, tmp_path / "c") == 1


def test_the_count_is_not_part_of_the_result(report: AuditReport, tmp_path: Path) -> None:
    keep(report, tmp_path / "a")
    assert note_earlier_audits(report, tmp_path / "b").report_digest() == report.report_digest()


def test_hostile_files_are_passed_over(report: AuditReport, tmp_path: Path) -> None:
    digest = report.probes.probes_digest
    stored = json.loads(report.to_json())
    hostile = {
        "nothing": b"",
        "deep": b"[" * 200_000 + digest.encode(),
        "list": json.dumps([digest]).encode(),
        "text": digest.encode(),
        "binary": b"\xff\xfe" + digest.encode(),
        "no contract": json.dumps({**stored, "contract": 3}).encode(),
        "no run": json.dumps({**stored, "run": None}).encode(),
        "another kind": json.dumps({**stored, "kind": "x"}).encode(),
    }
    for name, data in hostile.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_bytes(data)
    (tmp_path / "folder" / "report.json").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "report.json")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "report.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(1 << 30)
    assert count(report, tmp_path / "out") == 0
    for number, lie in enumerate([-5, "9", 10**9, True, None]):
        (tmp_path / f"lie{number}").mkdir()
        run = {**stored["run"], "earlier_audits": lie}
        (tmp_path / f"lie{number}" / "report.json").write_text(json.dumps({**stored, "run": run}))
    assert count(report, tmp_path / "out") == 5
