"""`recipe run`: trains a recipe's repair and its control, exports, and audits before and after.

hi is the model as it was given. Preservation gates: hi against the repaired model under the recipe, which is the audit
`after`. The quantization gap explains: the repaired model's masters against itself under the recipe.

A recipe with [gptq] trains nothing: its control is round-to-nearest, the arm `before`, and its masters are hi's.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from quantaudit import reporting
from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.composition import Order, Settings, audit_opened
from quantaudit.core.contract import Contract
from quantaudit.core.cores import free_cores
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe import Execution, Recipe
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.recipe_run import Arm, Effect, RecipeRun, TrainingSummary, summarize_arm
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import digest_of, write_atomically
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import Realization, apply_recipe
from quantaudit.evaluation.runner import check_request
from quantaudit.evaluation.subset import choose_probes
from quantaudit.probes.world import default_probes
from quantaudit.reporting.recipe_run import render_recipe_run
from quantaudit.training.calibrate import calibrate
from quantaudit.training.effect import measure_effect
from quantaudit.training.export import export_masters, realize, write_export, write_stacks
from quantaudit.training.gptq import check_library, library_version
from quantaudit.training.repair import Trained, control_of, repair_of, train_arm
from quantaudit.training.rounding import Rounded, round_by_gptq

Progress = Callable[[str, int, int], None]
_CPU = torch.device("cpu")  # one thread on one kind of device: a recipe's result is a function of its seed


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOrder:
    """What `recipe run` was asked for, read and checked.

    Attributes:
        recipe: With the seed in place.
        checkpoint: hi.
        hi_source: Where it came from.
        contract: What the arms must meet.
        probes: The audit split.
        folder: Where everything goes.
        formats: Views of the reports that are written beside their JSON.
        shared: Where is kept what runs on the same hi have in common: states of equal control arms, reports of equal
            arms `before`, and what audits measure of hi alone.
        threads: Of the audits; training takes one.
        command: What makes it again.
        progress: Told (stage, done, total).
    """

    recipe: Recipe
    checkpoint: Checkpoint
    hi_source: str
    contract: Contract
    probes: ProbeSet
    folder: Path
    shared: Path
    threads: int
    command: str
    progress: Progress
    formats: tuple[str, ...] = ("md", "html")


def run_recipe(
    name: str | Path,
    model: str | Path | None = None,
    *,
    output: str | Path,
    contract: str | Path = "default",
    seed: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> RecipeRun:
    """Runs a recipe on a model: calibrates, trains, exports, audits before and after, and writes it all down.

    Training reads the training split and calibration the select split; the audit split only judges.

    Args:
        name: Bundled name or TOML file of a recipe with a [repair] or a [gptq].
        model: Checkpoint folder; the embedded model when `None`.
        output: Folder of the reports, of `recipe.json` and `recipe.md`, and of the repaired checkpoint; a run that was
            stopped goes on from what it holds.
        contract: Bundled name or TOML file.
        seed: Decides the items; that of the recipe when `None`.
        threads: Of the audits; the free cores when `None`. Training takes one, so that its bits do not depend on it.
        progress: Told (stage, done, total).

    Raises:
        InputError: If an input is wrong, or the loss is not finite.
    """
    recipe = with_seed(load_recipe(name), seed)
    if recipe.gptq is not None:
        check_library()
    agreed = load_contract(contract)
    probes = choose_probes(default_probes(Split.AUDIT), agreed)
    check_request(agreed, probes)
    folder = Path(output)
    order = RecipeOrder(
        recipe=recipe,
        checkpoint=open_checkpoint(embedded_model_folder() if model is None else Path(model)),
        hi_source="embedded model" if model is None else Path(model).resolve().name,
        contract=agreed,
        probes=probes,
        folder=folder,
        shared=folder / ".shared",
        threads=threads or free_cores(),
        command=_command(name, model, contract, seed),
        progress=progress or _silent,
    )
    return carry_out_recipe(order)


def with_seed(recipe: Recipe, seed: int | None) -> Recipe:
    """Returns the recipe with another seed of its repair, or of its calibration items.

    Raises:
        InputError: If the recipe only rounds to nearest, or the seed is negative.
    """
    part = recipe.gptq or repair_of(recipe)
    if seed is None:
        return recipe
    if seed < 0:
        raise InputError(f"the seed {seed}", expected="0 or more", fix="choose another")
    name = "repair" if recipe.gptq is None else "gptq"
    return recipe.model_copy(update={name: part.model_copy(update={"seed": seed})})


class _Made(NamedTuple):
    """The deployments that are compared, the one that should be best last, and how they came about.

    Attributes:
        served: Arm by arm.
        trainings: How arms were trained.
        masters: The repaired model unquantized; `None` where that is hi.
        notes: Sentences that qualify the result.
    """

    served: dict[Arm, Realization]
    trainings: tuple[TrainingSummary, ...]
    masters: NativeEngine | None
    notes: tuple[str, ...]


def carry_out_recipe(order: RecipeOrder) -> RecipeRun:
    """Carries out what was ordered."""
    began = time.monotonic()
    torch.set_num_threads(1)
    hi = open_realization(order.checkpoint, _CPU)
    recipe = calibrate(hi, order.recipe, _CPU)
    made = _train(order, hi, recipe) if recipe.gptq is None else _round(order, hi, recipe)
    reports = {arm: _audit(order, recipe, arm, hi, lo) for arm, lo in made.served.items()}
    engines = {arm.value: NativeEngine(lo, _CPU) for arm, lo in made.served.items()}
    effect = _measure(order, "compare", NativeEngine(hi, _CPU), engines)
    run = _summarize(order, recipe, hi, reports, made, effect)
    if made.masters is not None:
        gap = _measure(order, "gap", made.masters, {Arm.AFTER.value: engines[Arm.AFTER.value]})
        run = run.model_copy(update={"gap": gap})
    run = run.model_copy(update={"seconds": time.monotonic() - began})
    write_atomically(order.folder / "recipe.json", run.to_json().encode())
    write_atomically(order.folder / "recipe.md", render_recipe_run(run).encode())
    return run


def _train(order: RecipeOrder, hi: Realization, recipe: Recipe) -> _Made:
    """Trains control and repair, and exports what was repaired."""
    control = train_arm(hi, recipe, Arm.CONTROL, folder=_control_state(order, recipe), progress=order.progress)
    after = train_arm(hi, recipe, Arm.AFTER, folder=order.folder / ".after", progress=order.progress)
    if not _exported(order).exists():
        write_export(_exported(order), after.model, recipe)
    served = {
        Arm.BEFORE: _round_to_nearest(hi, order.recipe),
        Arm.CONTROL: realize(control.model, recipe),
        Arm.AFTER: realize(after.model, recipe),
    }
    return _Made(served, (control.summary, after.summary), _masters(after), _TRAINED)


def _round(order: RecipeOrder, hi: Realization, recipe: Recipe) -> _Made:
    """Chooses codes by GPTQ, and exports them."""
    rounded = round_by_gptq(hi, recipe, progress=order.progress)
    if not _exported(order).exists():
        write_stacks(_exported(order), export_masters(hi.model), dict(rounded.realization.stored), recipe)
    served = {Arm.BEFORE: _round_to_nearest(hi, order.recipe), Arm.AFTER: rounded.realization}
    return _Made(served, (), None, _rounded_notes(rounded))


_TRAINED = (
    "Training read the training split and calibration the select split; the audit split only judged.",
    "A report's recipe holds [repair]; the arms before and control are rounded to nearest under its rules.",
)


def _rounded_notes(rounded: Rounded) -> tuple[str, ...]:
    return (
        f"Codes were chosen by GPTQ, the code of {library_version()}, on items of the training split; the audit split "
        "only judged.",
        "Nothing was trained, so round-to-nearest, the arm before, is the control; a report's recipe holds [gptq] in "
        "both.",
        f"Of {rounded.num_matrices} expert matrices, {rounded.num_short} saw fewer rows than they have columns, and "
        f"{rounded.num_nearest} keep the codes of round-to-nearest for want of any.",
    )


def _control_state(order: RecipeOrder, recipe: Recipe) -> Path:
    """Returns where the state of this control arm is kept: recipes that train alike have one."""
    key = digest_of([digest_checkpoint(order.checkpoint), control_of(repair_of(recipe)).digest()])
    return order.shared / f"control-{key[:16]}"


def _round_to_nearest(hi: Realization, recipe: Recipe) -> Realization:
    """Returns hi under the recipe as it was written: what `quantaudit run --recipe` audits."""
    return apply_recipe(hi, recipe)


def _exported(order: RecipeOrder) -> Path:
    return order.folder / "checkpoint"


def _masters(after: Trained) -> NativeEngine:
    plain = export_masters(after.model)
    return NativeEngine(Realization(model=plain, stored={}, activations={}, execution=Execution()), _CPU)


def _measure(order: RecipeOrder, stage: str, hi: NativeEngine, arms: dict[str, NativeEngine]) -> Effect:
    total, done = len(order.probes.probes), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        order.progress(stage, done, total)

    torch.set_num_threads(order.threads)
    return measure_effect(hi, arms, order.probes, advance=advance)


def _audit(order: RecipeOrder, recipe: Recipe, arm: Arm, hi: Realization, lo: Realization) -> AuditReport:
    """Audits one arm and writes its report; one that lies there already was made by the run that was stopped."""
    folder = order.folder / arm.value if arm is not Arm.BEFORE else _before_folder(order)
    stored = folder / "report.json"
    if stored.exists():
        return reporting.read_report(stored)
    torch.set_num_threads(order.threads)
    request = Order(
        hi=order.checkpoint,
        hi_source=order.hi_source,
        lo=None,
        lo_source=None if arm is Arm.BEFORE else f"{arm} arm",
        recipe=order.recipe if arm is Arm.BEFORE else recipe,
        contract=order.contract,
        probes=order.probes,
        device="cpu",
        threads=order.threads,
        settings=Settings(controls_folder=order.shared / "audits"),
        command=order.command,
    )
    report = audit_opened(request, hi, lo, lambda stage, done, total: order.progress(f"{arm} {stage}", done, total))
    reporting.write_reports(report, folder, order.formats)
    return report


def _before_folder(order: RecipeOrder) -> Path:
    """Returns where the report of round-to-nearest lies, which no seed changes."""
    return order.folder / Arm.BEFORE.value if order.shared.parent == order.folder else order.shared / order.recipe.name


def _summarize(
    order: RecipeOrder,
    recipe: Recipe,
    hi: Realization,
    reports: dict[Arm, AuditReport],
    made: _Made,
    effect: Effect,
) -> RecipeRun:
    num_expert_weights = sum(p.numel() for name, p in hi.model.named_parameters() if ".experts." in name)
    return RecipeRun(
        recipe=recipe,
        seed=(recipe.gptq or repair_of(recipe)).seed,
        hi_source=order.hi_source,
        hi_digest=reports[Arm.BEFORE].hi.weights_digest,
        arms=tuple(summarize_arm(arm, report, num_expert_weights) for arm, report in reports.items()),
        trainings=made.trainings,
        effect=effect,
        gap=None,
        notes=(*made.notes, *_nothing_to_repair(effect)),
        seconds=0.0,
        command=order.command,
    )


def _nothing_to_repair(effect: Effect) -> tuple[str, ...]:
    """Returns a sentence where rounding to nearest does no damage that these probes can see."""
    before = [o for o in effect.obstructions if o.arm == Arm.BEFORE.value]
    unharmed = [o.observer for o in before if o.estimate.interval.lower <= 0]
    if not unharmed:
        return ()
    return (f"Round-to-nearest leaves nothing to repair that these probes can prove in {', '.join(unharmed)}.",)


def _command(name: str | Path, model: str | Path | None, contract: str | Path, seed: int | None) -> str:
    words = ["quantaudit", "recipe", "run", str(name), *([] if model is None else [str(model)])]
    if str(contract) != "default":
        words += ["--contract", str(contract)]
    return shlex.join(words if seed is None else [*words, "--seed", str(seed)])


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
