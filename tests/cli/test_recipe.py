"""`quantaudit recipe`: the library is listed and shown, a run writes its reports, and wrong input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.recipe_run import Arm, RecipeRun
from quantaudit.reporting import read_report
from quantaudit.reporting.recipe_run import render_recipe_run, summarize_recipe_run
from tests.cli.command import Command
from tests.training.gptq_library import IS_INSTALLED, choose

BRIEF = """# Source: a test.
schema_version = 1
name = "brief"

[[rules]]
match = "layers.*.experts.w[123]"
weight = "mxfp4-even"

[repair]
steps = 2
items_per_step = 4
learning_rate = 1e-3
cross_entropy = 1.0
distillation = 1.0

[repair.families]
facts = 1.0
copying = 1.0
"""

COMPENSATED = """# Source: a test.
schema_version = 1
name = "compensated"

[[rules]]
match = "layers.*.experts.w[123]"
weight = "int4-g32-div7.5"

[gptq]
items_per_family = 1
"""


def test_the_library_is_listed(quantaudit: Command) -> None:
    ended = quantaudit("recipe", "list")
    assert ended.code == 0
    assert "k3-mxfp4-w4a8-qat" in ended.out and "nf4" in ended.out


def test_a_recipe_is_shown_with_its_repair(quantaudit: Command) -> None:
    ended = quantaudit("recipe", "show", "scale-learned")
    shown = json.loads(ended.out)
    assert shown["digest"] == load_recipe("scale-learned").digest()
    assert shown["repair"]["learns_scales"] is True


def test_a_recipe_that_does_not_train_is_not_run(quantaudit: Command) -> None:
    ended = quantaudit("recipe", "run", "nf4")
    assert ended.code == 2
    assert "has no [repair]" in ended.err and "quantaudit run --recipe nf4" in ended.err


def test_a_negative_seed_is_refused(quantaudit: Command) -> None:
    assert quantaudit("recipe", "run", "int3-qad", "--seed", "-1").code == 2


@pytest.mark.skipif(IS_INSTALLED, reason="nvidia-modelopt is installed")
def test_a_recipe_whose_library_is_missing_says_what_to_install(quantaudit: Command, tmp_path: Path) -> None:
    ended = quantaudit("recipe", "run", "gptq-int3-g32", "-o", str(tmp_path / "out"))
    assert ended.code == 2
    assert "pip install 'quantaudit[modelopt]'" in ended.err and ended.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_gptq_has_round_to_nearest_for_its_control_and_exports_its_codes(
    quantaudit: Command, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose("library" if IS_INSTALLED else "oracle", monkeypatch)
    recipe, out = tmp_path / "compensated.toml", tmp_path / "out"
    recipe.write_text(COMPENSATED, "utf-8")
    arguments = ("recipe", "run", str(recipe), str(models / "plain"), "--contract", "smoke", "--threads", "1")
    ended = quantaudit(*arguments, "--seed", "3", "-o", str(out), "--json")
    assert ended.code == 0, ended.err
    found = RecipeRun.from_json(ended.out)
    assert [arm.arm for arm in found.arms] == [Arm.BEFORE, Arm.AFTER]
    assert found.seed == 3 and found.trainings == () and found.gap is None
    assert {r.before for r in found.effect.reductions} == {"before"}
    before, after = found.arms
    assert before.weights_digest != after.weights_digest and before.expert_bytes == after.expert_bytes
    assert any("round-to-nearest, the arm before, is the control" in note for note in found.notes)
    assert len(open_checkpoint(out / "checkpoint").packed_stacks()) > 0
    assert (out / "recipe.md").read_text("utf-8") == render_recipe_run(found)


@pytest.mark.slow
def test_a_run_audits_three_arms_and_exports_a_packed_checkpoint(
    quantaudit: Command, models: Path, tmp_path: Path
) -> None:
    recipe, out = tmp_path / "brief.toml", tmp_path / "out"
    recipe.write_text(BRIEF, "utf-8")
    arguments = ("recipe", "run", str(recipe), str(models / "plain"), "--contract", "smoke", "--threads", "1")
    ended = quantaudit(*arguments, "-o", str(out), "--json")
    assert ended.code == 0, ended.err
    found = RecipeRun.from_json(ended.out)
    assert [arm.arm for arm in found.arms] == list(Arm)
    for arm in found.arms:
        assert read_report(out / arm.arm.value / "report.json").report_digest() == arm.report_digest
    assert len(open_checkpoint(out / "checkpoint").packed_stacks()) > 0
    assert {r.before for r in found.effect.reductions} == {"before", "control"}
    assert (out / "recipe.md").read_text("utf-8") == render_recipe_run(found)
    assert "after" in summarize_recipe_run(found)
    again = quantaudit(*arguments, "-o", str(out), "--json")
    resumed = RecipeRun.from_json(again.out)
    assert resumed.effect == found.effect, "the states and reports that are there are taken"
    assert [arm.report_digest for arm in resumed.arms] == [arm.report_digest for arm in found.arms]
