"""Help and version are quick, plain, and say what every exit code means."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit import __version__
from quantaudit.cli import main
from quantaudit.core.verdict import ExitCode
from tests.cli.command import Command, finish, interpret, start

VERBS = (
    "run",
    "judge",
    "contract",
    "certify",
    "compare",
    "identify",
    "fingerprint",
    "inspect",
    "report",
    "diff",
    "list",
    "show",
)
HEAVY = ("torch", "numpy", "scipy", "pandas", "statsmodels", "rich", "jinja2")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = f"""
import sys
from quantaudit.cli.main import _run
code = _run({arguments!r})
print(code, [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert interpret(code, cwd=tmp_path).splitlines()[-1] == "0 []"


def test_help_has_the_table_of_exit_codes(quantaudit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = quantaudit("--help").out
    rows = [line.split(maxsplit=1) for line in text[text.index("Exit codes:") :].splitlines()[1:-1]]
    assert {int(code) for code, _ in rows} == {*ExitCode, main.INTERRUPTED}
    assert "1 is never a verdict." in text


def test_the_codes_of_the_command_are_those_of_the_verdict() -> None:
    assert main.INPUT_ERROR == ExitCode.INPUT_ERROR
    assert main.INCONCLUSIVE == ExitCode.INCONCLUSIVE
    assert main.INTERNAL_ERROR == ExitCode.INTERNAL_ERROR


def test_every_verb_has_help_and_is_listed_whole(quantaudit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    overview = quantaudit("--help").out
    assert "..." not in overview.split("Commands:")[1]
    for verb in VERBS:
        assert f"\n  {verb} " in overview
        ended = quantaudit(verb, "--help")
        assert ended.code == 0 and f"Usage: quantaudit {verb} " in ended.out and ended.err == ""


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_fits_sixty_columns_of_plain_ascii(
    arguments: list[str], quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = quantaudit(*arguments).out
    assert text.isascii() and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_version_is_the_version_and_nothing_else(quantaudit: Command) -> None:
    ended = quantaudit("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"{__version__}\n", "")


def test_a_reader_that_leaves_early_ends_the_command_quietly(tmp_path: Path) -> None:
    process = start("list", "schemes", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    ended = finish(process)
    assert ended.err == "" and ended.code != 1
