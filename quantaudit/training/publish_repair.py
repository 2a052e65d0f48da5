"""Publishes a repaired checkpoint: what `quantaudit recipe run` exported, with the card that says what it is worth.

`python -m quantaudit.training.publish_repair RUN` takes the folder of a recipe run on the embedded model and puts its
checkpoint beside the embedded one, where `core.resources` finds it.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.recipe_run import Arm, Effect, RecipeRun
from quantaudit.core.resources import embedded_model_folder, repaired_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.core.verdict import Admission


class RepairCard(Frozen):
    """What ships beside the repaired weights.

    Attributes:
        weights_digest: Digest of the checkpoint's tensors.
        hi_weights_digest: Digest of the embedded checkpoint that it was trained from.
        recipe: Name of the recipe.
        recipe_digest: Its digest.
        command: What makes it from the embedded checkpoint.
        verdict: Of the audit of the repaired model against the embedded one.
        effect: What the repair is worth on the audit split.
    """

    weights_digest: str
    hi_weights_digest: str
    recipe: str
    recipe_digest: str
    command: str
    verdict: Admission
    effect: Effect


def publish_repair(run: Path, target: Path) -> RepairCard:
    """Copies the checkpoint of a recipe run over whatever is in `target`, and writes its card.

    Raises:
        InputError: If the folder holds no finished recipe run on the embedded model.
    """
    result = run / "recipe.json"
    if not result.is_file():
        raise InputError(f"{run}, without recipe.json", expected="the folder of a finished recipe run", fix="finish it")
    found = RecipeRun.from_json(result.read_text("utf-8"))
    if found.hi_source != "embedded model":
        raise InputError(f"a run on {found.hi_source}", expected="a run on the embedded model", fix="run it there")
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(run / "checkpoint", fresh)
    card = RepairCard(
        weights_digest=digest_checkpoint(open_checkpoint(fresh)),
        hi_weights_digest=digest_checkpoint(open_checkpoint(embedded_model_folder())),
        recipe=found.recipe.name,
        recipe_digest=found.recipe.digest(),
        command=found.command,
        verdict=found.arm(Arm.AFTER).verdict,
        effect=found.effect,
    )
    write_atomically(fresh / "card.json", card.to_json().encode())
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return card


def main() -> None:
    """Runs the program from the command line."""
    parser = argparse.ArgumentParser(description="Publish a repaired checkpoint beside the embedded one.")
    parser.add_argument("run", type=Path, help="folder of `quantaudit recipe run RECIPE -o RUN`")
    parser.add_argument("--out", type=Path, default=None, help="checkpoint folder; the package's if left out")
    args = parser.parse_args()
    print(publish_repair(args.run, args.out or repaired_model_folder(must_exist=False)).to_json())


if __name__ == "__main__":
    main()
