"""`quantaudit judge` as a user meets it: exit codes, files, one line where it ends early, and no torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.reporting import read_report
from tests.cli.command import Command, interpret, is_one_line
from tests.evaluation.recorded.written import HI, LO, Row, rows, write_csv, write_jsonl

COUNT = 1200


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """`hi`, a harmless `lo`, a `bad` one, and `again`: hi a second time, in another order."""

    def lose(i: int, row: Row) -> None:
        if i % 12 == 1:
            row["correct"] = 0

    made = {"hi": rows(COUNT), "lo": rows(COUNT)[::-1], "bad": rows(COUNT, change=lose)}
    for name, items in made.items():
        write_jsonl(tmp_path / f"{name}.jsonl", items)
    write_csv(tmp_path / "again.csv", rows(COUNT))
    return tmp_path


ANSWERS = ("--contract", "recorded-answers")


def test_every_verdict_has_its_code_and_its_report(recorded: Path, quantaudit: Command) -> None:
    hi, lo, bad, again = (recorded / name for name in ("hi.jsonl", "lo.jsonl", "bad.jsonl", "again.csv"))
    admitted = quantaudit("judge", hi, lo, "--floor", again, *ANSWERS, "-o", recorded / "out")
    assert admitted.code == 0 and admitted.out.startswith("ADMIT ") and admitted.err == ""
    assert len(admitted.out.splitlines()) <= 25
    assert {"report.json", "report.md", "report.html"} <= {path.name for path in (recorded / "out").iterdir()}
    assert quantaudit("judge", hi, lo, *ANSWERS).code == 4
    assert quantaudit("judge", hi, bad, *ANSWERS).code == 3
    assert quantaudit("judge", hi, lo, "--floor", again).code == 4  # `recorded` asks for refusals too


def test_json_is_the_report_and_nothing_else(recorded: Path, quantaudit: Command) -> None:
    ended = quantaudit("judge", recorded / "hi.jsonl", recorded / "bad.jsonl", *ANSWERS, "--json", "-o", "out")
    report = read_report(Path("out/report.json"))
    assert Path("out/report.json").read_text("utf-8") == ended.out
    assert report.verdict.admission.value == "REJECT" and report.hi.stored_bits_per_expert_weight is None
    assert report.run.command.startswith("quantaudit judge ") and "--contract recorded-answers" in report.run.command


def test_real_folders_of_lm_eval_are_judged(quantaudit: Command) -> None:
    ended = quantaudit("judge", HI, LO, "--json", *ANSWERS)
    assert ended.code == 4
    names = [clause["name"] for clause in json.loads(ended.out)["clauses"]]
    assert "task[tiny_sums]" in names and "task[tiny_gen/strict-match]" in names


def test_wrong_input_is_one_line(recorded: Path, quantaudit: Command) -> None:
    hi, lo = recorded / "hi.jsonl", recorded / "lo.jsonl"
    for arguments, said in (
        ((hi, recorded / "none.jsonl"), "expected a file that exists"),
        ((hi, lo, "--contract", "nosuch"), "the contract 'nosuch'"),
        ((hi, lo, "--floor", hi), "is HI itself"),
        ((hi, lo, "--metric", "acc"), "--metric acc for "),
        ((hi, lo, "-o", hi), "cannot be written"),
    ):
        ended = quantaudit("judge", *arguments)
        assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err


def test_nothing_to_compare_is_not_measured(recorded: Path, quantaudit: Command) -> None:
    other = write_jsonl(recorded / "other.jsonl", [row | {"id": f"other{i}"} for i, row in enumerate(rows(5))])
    for lo in (other, recorded / "hi.jsonl"):
        ended = quantaudit("judge", recorded / "hi.jsonl", lo)
        assert ended.code == 4 and is_one_line(ended.err) and ended.err.startswith("quantaudit: not measured: ")


def test_torch_is_never_imported(recorded: Path) -> None:
    arguments = ["judge", "hi.jsonl", "lo.jsonl", "--floor", "again.csv", *ANSWERS, "-o", "out"]
    code = f"""
import sys
from quantaudit.cli.main import _run
code = _run({arguments!r})
print(code, "torch" in sys.modules)
"""
    assert interpret(code, cwd=recorded).splitlines()[-1] == "0 False"
