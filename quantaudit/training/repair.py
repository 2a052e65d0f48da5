"""A repair as an experiment: the arm that trains under fake quantization, and the control that does not.

Both start from hi, take the same number of steps with the same optimizer on the same items; the control is rounded to
nearest only at the end. What the repaired arm gains over it is owed to the quantizer in the loop, not to more training.
Training reads the training split and calibration the select split; the audit split is read by neither.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import ComputeDtype, Estimator, Recipe, Repair
from quantaudit.core.recipe_run import Arm, TrainingSummary
from quantaudit.engines.realization import Realization
from quantaudit.model.lm import LanguageModel
from quantaudit.training.fake_quantize import prepare
from quantaudit.training.learned_scales import prepare_learned
from quantaudit.training.qat import QatTrainer

_SAVE_EVERY = 50
_POINTS = 8  # losses that a summary keeps

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One trained arm.

    Attributes:
        model: Prepared where the arm trains under fake quantization, else plain; its parameters are the masters.
        summary: How it went.
    """

    model: LanguageModel
    summary: TrainingSummary


def repair_of(recipe: Recipe) -> Repair:
    """Returns how a recipe trains.

    Raises:
        InputError: If it does not.
    """
    if recipe.repair is None:
        raise InputError(
            f"recipe {recipe.name!r} has no [repair]",
            expected="a recipe that trains",
            fix=f"use `quantaudit run --recipe {recipe.name}`, or choose one of `quantaudit recipe list`",
        )
    return recipe.repair


def control_of(repair: Repair) -> Repair:
    """Returns the repair without what concerns rounding, so that equal controls of two recipes are known as equal."""
    return repair.model_copy(update={"estimator": Estimator.PLAIN, "learns_scales": False, "scale_rate": 0.0})


def prepare_arm(hi: Realization, recipe: Recipe, arm: Arm) -> LanguageModel:
    """Returns a copy of hi's model with masters in the dtype of the repair, prepared unless it is the control.

    Raises:
        InputError: If hi is stored quantized, or the recipe does not fit the model.
    """
    repair = repair_of(recipe)
    if hi.stored:
        raise InputError(
            f"a model with {len(hi.stored)} expert stacks stored in {next(iter(hi.stored.values())).scheme.name}",
            expected="a model whose experts are not quantized: masters are trained",
            fix="train from the bf16 checkpoint",
        )
    model = copy.deepcopy(hi.model)
    if repair.masters is ComputeDtype.FLOAT32:
        model = model.float()
    if arm is Arm.CONTROL:
        return model
    if repair.learns_scales:
        return prepare_learned(model, recipe)
    return prepare(model, recipe, estimator=repair.estimator)


def train_arm(
    hi: Realization, recipe: Recipe, arm: Arm, *, folder: Path | None = None, progress: Progress | None = None
) -> Trained:
    """Trains one arm, from the state in `folder` if there is one.

    Args:
        hi: The reference, which is also the teacher.
        recipe: With what calibration chose.
        arm: CONTROL or AFTER.
        folder: Where the state is kept; nowhere when `None`.
        progress: Told (stage, done, total).

    Raises:
        InputError: As `prepare_arm`, and if the loss is not finite.
    """
    repair = repair_of(recipe) if arm is Arm.AFTER else control_of(repair_of(recipe))
    trainer = QatTrainer(prepare_arm(hi, recipe, arm), teacher_of(hi, repair), repair)
    if folder is not None:
        trainer.load(folder)
    began, losses = time.monotonic(), []
    while trainer.step < repair.steps:
        losses.append(trainer.take_step())
        if folder is not None and (trainer.step % _SAVE_EVERY == 0 or trainer.step == repair.steps):
            trainer.save(folder)
        if progress is not None:
            progress(f"train {arm}", trainer.step, repair.steps)
    seconds = time.monotonic() - began
    summary = TrainingSummary(arm=arm, steps=repair.steps, losses=thin_out(losses), seconds=seconds)
    return Trained(model=trainer.model, summary=summary)


def teacher_of(hi: Realization, repair: Repair) -> LanguageModel | None:
    """Returns hi's model, widened once instead of in every forward; the values are the same."""
    if repair.distillation == 0:
        return None
    return copy.deepcopy(hi.model).float().requires_grad_(requires_grad=False)


def thin_out(losses: list[float]) -> tuple[float, ...]:
    """Returns the means of the losses over a few stretches of equal length."""
    size = max(1, -(-len(losses) // _POINTS))
    return tuple(sum(part) / len(part) for part in (losses[i : i + size] for i in range(0, len(losses), size)))
