"""`quantaudit simulate qat`: exit 0 for a clean run, 3 for a planted mismatch, 4 where something was not checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.test_recipe import BRIEF


@pytest.fixture
def brief(tmp_path: Path) -> str:
    """A recipe of two steps."""
    path = tmp_path / "brief.toml"
    path.write_text(BRIEF, "utf-8")
    return str(path)


def test_a_clean_run_ends_with_0_and_a_planted_rule_with_3(
    quantaudit: Command, models: Path, tmp_path: Path, brief: str
) -> None:
    arguments = ("simulate", "qat", str(models / "plain"), "--recipe", brief)
    clean = quantaudit(*arguments, "-o", str(tmp_path / "clean"))
    assert clean.code == 0, clean.err
    assert clean.out.startswith("clean; 2 steps.")
    planted = quantaudit(*arguments, "-o", str(tmp_path / "planted"), "--inject", "another-rule@1", "--json")
    assert planted.code == 3, planted.err
    assert {finding["step"] for finding in json.loads(planted.out)["findings"]} == {1}


def test_a_run_with_steps_that_are_not_checked_ends_with_4_and_goes_on_with_resume(
    quantaudit: Command, models: Path, tmp_path: Path, brief: str
) -> None:
    arguments = ("simulate", "qat", str(models / "plain"), "--recipe", brief, "-o", str(tmp_path / "run"))
    assert quantaudit(*arguments, "--check-every", "2").code == 4
    again = quantaudit(*arguments)
    assert again.code == 2 and "add --resume" in again.err
    assert quantaudit(*arguments, "--resume").code == 4, "what was not checked stays so"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--recipe", "nf4"), "has no [repair]"),
        (("--inject", "cache-not-flushed@1"), "use `quantaudit simulate rl`"),
        (("--inject", "nonsense@1"), "the injection 'nonsense'"),
        (("--steps", "0"), "at least one step"),
        (("--resume",), "--resume without a folder"),
    ],
)
def test_wrong_input_is_one_sentence(quantaudit: Command, options: tuple[str, ...], message: str) -> None:
    ended = quantaudit("simulate", "qat", *options)
    assert ended.code == 2
    assert message in ended.err and ended.err.count("\n") == 1
