"""`simulate rl`: a reinforcement-learning run whose trainer and engine are compared at every step."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.rl_run import RlRun
from quantaudit.probes.tokenizer import VOCAB_SIZE
from quantaudit.probes.world import build_world
from quantaudit.training.checking.injections.registry import make_faults
from quantaudit.training.checking.schedule import Schedule
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.rl.engine_client import EngineClient
from quantaudit.training.rl.loop import Step
from quantaudit.training.rl.run import RunRequest, Start, run_loop
from quantaudit.training.rl.settings import RlSettings, read_settings

Progress = Callable[[str, int, int], None]


def simulate_rl(
    model: str | Path | None = None,
    *,
    output: str | Path,
    recipe: str | Path = "k3-w4a8",
    settings: str | Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    inject: Sequence[str] = (),
    check_every: int = 1,
    check_period: int = 1,
    confirm: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> RlRun:
    """Runs GRPO on the closed world, with a rollout engine in a process of its own; on one thread of the CPU.

    Args:
        model: Checkpoint folder; the embedded model when `None`.
        output: Folder of the run: settings, log, state, result.
        recipe: Bundled name or TOML file; its rules may name routed experts only.
        settings: TOML or JSON file of everything else; defaults when `None`.
        steps: Steps of the run; those of the settings when `None`.
        seed: Of items and draws; that of the settings when `None`.
        inject: Mismatches to be planted, each `NAME@STEP[:key=value,...]`.
        check_every: Steps from one check to the next.
        check_period: Every how manieth expert a check looks at.
        confirm: Prompts that are asked when the run is over and not before; those of the settings when `None`.
        resume: Whether the folder's run goes on.
        progress: Told (stage, done, total).

    Raises:
        InputError: If an input is wrong, the engine dies, or the loss is not finite; the run can be resumed then.
    """
    wanted = _settings(settings, steps, seed, confirm)
    request = RunRequest(
        folder=Path(output),
        start=_open_start(model),
        recipe=load_recipe(recipe),
        settings=wanted,
        world=build_world(),
        checking=CheckSettings(schedule=Schedule(every=check_every, period=check_period), max_staleness=0),
        faults=make_faults(inject, seed=wanted.seed),
        inject=tuple(inject),
        resume=resume,
        command=_command(model, recipe, settings, wanted, inject, check_every, check_period, confirm),
    )
    torch.set_num_threads(1)
    engine = partial(EngineClient, request.start.model.config, timeout_seconds=wanted.timeout_seconds)
    return run_loop(request, engine, partial(_tell, progress, wanted.steps))


def _tell(progress: Progress | None, steps: int, step: Step) -> None:
    if progress is not None:
        progress("step", step.record.step + 1, steps)


def _settings(path: str | Path | None, steps: int | None, seed: int | None, confirm: int | None) -> RlSettings:
    settings = RlSettings() if path is None else read_settings(Path(path))
    given = (("steps", steps), ("seed", seed), ("confirm", confirm))
    changes = {key: value for key, value in given if value is not None}
    if changes.get("steps", 1) < 1:
        raise InputError(f"{steps} steps", expected="1 or more", fix="correct --steps")
    if changes.get("confirm", 0) < 0:
        raise InputError(f"{confirm} prompts to confirm", expected="0 or more", fix="correct --confirm")
    return settings.model_copy(update=changes)


def _open_start(path: str | Path | None) -> Start:
    """Reads the weights that training starts from; refuses models whose tokens are not the closed world's."""
    checkpoint = open_checkpoint(embedded_model_folder() if path is None else Path(path))
    if checkpoint.config.vocab_size != VOCAB_SIZE:
        raise InputError(
            f"a model of {checkpoint.config.vocab_size} tokens",
            expected=f"the closed world's vocabulary of {VOCAB_SIZE}",
            fix="give the embedded model or one that was trained from it",
        )
    return Start(model=load_model(checkpoint), digest=digest_checkpoint(checkpoint))


def _command(
    model: str | Path | None,
    recipe: str | Path,
    settings: str | Path | None,
    wanted: RlSettings,
    inject: Sequence[str],
    check_every: int,
    check_period: int,
    confirm: int | None,
) -> str:
    words = ["quantaudit", "simulate", "rl"]
    words += [] if model is None else [str(model)]
    words += ["--recipe", str(recipe), "--steps", str(wanted.steps), "--seed", str(wanted.seed)]
    words += [] if settings is None else ["--settings", str(settings)]
    words += [word for one in inject for word in ("--inject", one)]
    words += [] if check_every == 1 else ["--check-every", str(check_every)]
    words += [] if check_period == 1 else ["--check-period", str(check_period)]
    words += [] if confirm is None else ["--confirm", str(confirm)]
    return shlex.join(words)
