"""`quantaudit simulate rl` as a user meets it: exit codes, findings by name, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Command, is_one_line

SETTINGS = """
steps = 2
prompts_per_step = 2
group_size = 2
reward = "coin"
learning_rate = 5e-3
warmup_steps = 1
held_out = 8
confirm = 8
timeout_seconds = 120.0
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Settings of a run of two steps."""
    path = tmp_path / "short.toml"
    path.write_text(SETTINGS)
    return path


@pytest.mark.slow
def test_a_clean_run_is_0_and_goes_on(quantaudit: Command, models: Path, short: Path) -> None:
    plain = str(models / "plain")
    ended = quantaudit("simulate", "rl", plain, "--settings", str(short), "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("CLEAN") and "greedy reward on 8 held-out two-step prompts" in ended.out
    assert (
        "greedy reward on 8 other two-step prompts" in ended.out
        and "8 other two-step" in Path("run/run.md").read_text()
    )
    assert ended.out.count("\n") <= 25
    more = quantaudit(
        "simulate",
        "rl",
        plain,
        "--settings",
        str(short),
        "--steps",
        "3",
        "-o",
        "run",
        "--resume",
        "--json",
        "--confirm",
        "6",
    )
    assert more.code == 0
    assert json.loads(more.out)["num_steps"] == 3
    assert json.loads(more.out)["held_out"]["rise"]["num_probes"] == 8
    result = json.loads((Path("run") / "result.json").read_text())
    assert result["confirmed"]["rise"]["num_probes"] == 6 == json.loads(more.out)["confirmed"]["rise"]["num_probes"]


@pytest.mark.slow
def test_a_planted_mismatch_is_3_and_named(quantaudit: Command, models: Path, short: Path) -> None:
    ended = quantaudit(
        "simulate", "rl", str(models / "plain"), "--settings", str(short), "--inject", "router-precision@1", "-o", "run"
    )
    assert ended.code == 3
    assert ended.out.startswith("MISMATCH") and "step 1: router-precision" in ended.out
    assert (Path("run") / "run.html").exists() and (Path("run") / "run.md").exists()


@pytest.mark.slow
def test_a_step_that_is_not_checked_is_4(quantaudit: Command, models: Path, short: Path) -> None:
    ended = quantaudit(
        "simulate", "rl", str(models / "plain"), "--settings", str(short), "--check-every", "2", "-o", "run"
    )
    assert ended.code == 4
    assert "1 steps were not checked, first step 1" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--inject", "no-such@1"), "the injection 'no-such'"),
        (("--inject", "router-precision"), "NAME@STEP"),
        (("--steps", "0"), "0 steps"),
        (("--confirm", "-1"), "--confirm"),
        (("--recipe", "no-such"), "no-such"),
        (("--settings", "no-such.toml"), "no-such.toml"),
        (("--resume",), "-o DIR"),
        (("--resume", "-o", "empty"), "holds no run"),
        (("--check-every", "0"), "--check-every"),
    ],
)
def test_bad_input_is_2_and_one_line(
    quantaudit: Command, models: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = quantaudit("simulate", "rl", str(models / "plain"), *arguments)
    assert ended.code == 2, ended.err
    assert is_one_line(ended.err) and message in ended.err


def test_settings_that_do_not_fit_together_are_2(quantaudit: Command, models: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('[objective]\nold_logprobs = "rollout"\n')
    ended = quantaudit("simulate", "rl", str(models / "plain"), "--settings", str(path))
    assert ended.code == 2 and is_one_line(ended.err)
    assert "the ratio holds that distance already" in ended.err
    path.write_text("stepz = 3\n")
    ended = quantaudit("simulate", "rl", str(models / "plain"), "--settings", str(path))
    assert ended.code == 2 and is_one_line(ended.err) and "stepz" in ended.err


def test_a_model_of_another_vocabulary_is_refused(quantaudit: Command, models: Path) -> None:
    ended = quantaudit("simulate", "rl", str(models / "letters"))
    assert ended.code == 2 and "vocabulary" in ended.err
