"""`simulate qat`: quantization-aware training whose export is compared with the trainer at every step."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.qat_run import QatRun
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.resources import embedded_model_folder
from quantaudit.engines.opening import open_realization
from quantaudit.training.checked_qat import QatRequest, refuse_engine_injections, run_checked_qat
from quantaudit.training.checking.injections.registry import make_faults
from quantaudit.training.checking.schedule import Schedule
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.repair import repair_of

Progress = Callable[[str, int, int], None]


def simulate_qat(
    model: str | Path | None = None,
    *,
    output: str | Path,
    recipe: str | Path = "k3-mxfp4-w4a8-qat",
    steps: int | None = None,
    seed: int | None = None,
    inject: Sequence[str] = (),
    check_every: int = 1,
    check_period: int = 1,
    resume: bool = False,
    progress: Progress | None = None,
) -> QatRun:
    """Trains a recipe's repair and checks its export at every step.

    One thread, on the CPU: the run is a function of its settings.

    Args:
        model: Checkpoint folder; the embedded model when `None`.
        output: Folder of the run: settings, log, state.
        recipe: Bundled name or TOML file of a recipe with a [repair].
        steps: Steps of the run; those of the recipe when `None`.
        seed: Decides the items; that of the recipe when `None`.
        inject: Mismatches to be planted, each `NAME@STEP[:key=value,...]`.
        check_every: Steps from one check to the next.
        check_period: Every how manieth expert a check looks at.
        resume: Whether the folder's run goes on.
        progress: Told (stage, done, total).

    Raises:
        InputError: If an input is wrong, or the loss is not finite; the run can be resumed then.
    """
    chosen = _with(load_recipe(recipe), steps, seed)
    faults = make_faults(inject, seed=repair_of(chosen).seed)
    refuse_engine_injections(tuple(inject), repair_of(chosen).seed)
    checkpoint = open_checkpoint(embedded_model_folder() if model is None else Path(model))
    torch.set_num_threads(1)
    request = QatRequest(
        folder=Path(output),
        hi=open_realization(checkpoint, torch.device("cpu")),
        model_digest=digest_checkpoint(checkpoint),
        recipe=chosen,
        checking=CheckSettings(schedule=Schedule(every=check_every, period=check_period)),
        faults=faults,
        inject=tuple(inject),
        resume=resume,
        command=_command(model, recipe, steps, seed, inject, check_every, check_period),
    )
    return run_checked_qat(request, partial(progress or _silent, "step"))


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""


def _with(recipe: Recipe, steps: int | None, seed: int | None) -> Recipe:
    """Returns the recipe with other steps and another seed of its repair."""
    repair = repair_of(recipe)
    changes = {key: value for key, value in (("steps", steps), ("seed", seed)) if value is not None}
    if changes.get("steps", 1) < 1 or changes.get("seed", 0) < 0:
        raise InputError(f"{changes}", expected="at least one step, and a seed of 0 or more", fix="correct the option")
    return recipe.model_copy(update={"repair": repair.model_copy(update=changes)})


def _command(
    model: str | Path | None,
    recipe: str | Path,
    steps: int | None,
    seed: int | None,
    inject: Sequence[str],
    check_every: int,
    check_period: int,
) -> str:
    words = ["quantaudit", "simulate", "qat", *([] if model is None else [str(model)]), "--recipe", str(recipe)]
    words += [] if steps is None else ["--steps", str(steps)]
    words += [] if seed is None else ["--seed", str(seed)]
    words += [word for one in inject for word in ("--inject", one)]
    words += [] if check_every == 1 else ["--check-every", str(check_every)]
    words += [] if check_period == 1 else ["--check-period", str(check_period)]
    return shlex.join(words)
