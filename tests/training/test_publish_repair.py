"""A repaired checkpoint is published whole, with a card that says what it was made from and what it is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.recipe_run import RecipeRun
from quantaudit.training.export import write_export
from quantaudit.training.publish_repair import RepairCard, publish_repair
from tests.reporting.test_recipe_run import sample_run
from tests.training.toy import toy_model, toy_recipe


def finished_run(folder: Path, result: RecipeRun) -> Path:
    """Writes what a recipe run leaves."""
    write_export(folder / "checkpoint", toy_model(), toy_recipe("k3-mxfp4-w4a8-qat"))
    (folder / "recipe.json").write_text(result.to_json(), "utf-8")
    return folder


def test_the_checkpoint_is_copied_over_an_older_one_with_its_card(tmp_path: Path) -> None:
    run, target = finished_run(tmp_path / "run", sample_run()), tmp_path / "shipped"
    target.mkdir()
    (target / "stale.json").write_text("{}")
    card = publish_repair(run, target)
    assert sorted(path.name for path in target.iterdir()) == [
        "card.json",
        "config.json",
        "export.json",
        "model.safetensors",
    ]
    assert RepairCard.from_json((target / "card.json").read_text("utf-8")) == card
    assert card.weights_digest == digest_checkpoint(open_checkpoint(target))
    assert len(open_checkpoint(target).packed_stacks()) == 9
    assert card.effect == sample_run().effect


def test_a_run_that_is_not_finished_or_on_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without recipe.json"):
        publish_repair(tmp_path, tmp_path / "out")
    other = finished_run(tmp_path / "run", sample_run().model_copy(update={"hi_source": "mine"}))
    with pytest.raises(InputError, match="a run on mine"):
        publish_repair(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
