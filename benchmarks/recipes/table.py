"""The page of the recipe library: what is in it, and what every repair is worth over the seeds that were run.

Over seeds, an O_Q is the mean, and its bounds are the means of the bounds: each seed's interval speaks of probes, and
seeds are shown by their number of proved reductions, not averaged away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_file import load_recipe, recipe_names
from quantaudit.core.recipe_run import Arm, ClauseLine, RecipeRun

Runs = Mapping[str, Sequence[RecipeRun]]
_OBSERVERS = ("nll", "kl-forward", "answer-margin")
_ARMS = (Arm.BEFORE, Arm.CONTROL, Arm.AFTER)


def render_page(runs: Runs, *, probes_per_family: int, work: str) -> str:
    """Returns the whole page.

    Args:
        runs: Results by recipe, a seed each.
        probes_per_family: Probes of the audit split, at most.
        work: Work folder, as in the command.
    """
    parts = [
        "# Recipes",
        "A recipe says which tensors get which scheme; a repair also says how the model is trained for it. "
        "`quantaudit run --recipe NAME` rounds to nearest under its rules, `quantaudit recipe run NAME` trains too.",
        _library(),
        "## What the repairs are worth",
        "On the embedded model, audit split, one run a seed. `before` is round-to-nearest, `control` the same steps on "
        "the same items without fake quantization and then round-to-nearest, `after` the repaired model. O_Q is the "
        "mean damage against the model as it was given, in the unit of its observer, positive where the deployment is "
        "worse. A reduction is paired by probe; its bounds are those of a 95 % interval over clusters of probes, and "
        "it is *proved* where that lies above zero.",
        _worth(runs),
        "## Every clause",
        "Mean over seeds of O_Q with its 90 % bounds (each is a one-sided 95 % bound, as the contract decides), and "
        "the outcome where all seeds agree.",
        *(_clauses(name, found) for name, found in runs.items()),
        f"Made by `python -m benchmarks.recipes {work}` with at most {probes_per_family} probes a family.",
    ]
    return "\n\n".join(parts) + "\n"


def _library() -> str:
    rows = [_entry(load_recipe(name)) for name in recipe_names()]
    return _table(("recipe", "weights", "inputs", "repair", "what it is"), rows)


def _entry(recipe: Recipe) -> tuple[str, ...]:
    rule = recipe.rules[0] if recipe.rules else None
    weight = "as they are" if rule is None or rule.weight is None else f"`{rule.weight}`"
    inputs = "as they are" if rule is None or rule.activation is None else f"`{rule.activation}`"
    codes = "none" if recipe.gptq is None else "GPTQ"
    repair = codes if recipe.repair is None else f"{recipe.repair.steps} steps"
    return (f"`{recipe.name}`", weight, inputs, repair, recipe.description)


def _worth(runs: Runs) -> str:
    columns = ("recipe", "verdict before / control / after", "bytes of experts", "minutes")
    measured = tuple(f"{o}: O_Q before, control, after; reduction against before, control" for o in _OBSERVERS)
    rows: list[tuple[str, ...]] = []
    for name, found in runs.items():
        verdicts = " / ".join(_agreed([str(run.arm(arm).verdict) for run in found]) for arm in _ARMS)
        size = f"{found[0].arm(Arm.AFTER).expert_bytes:,}"
        minutes = f"{fmean(run.seconds for run in found) / 60:.0f}"
        worth = (_observer(found, observer) for observer in _OBSERVERS)
        rows.append((f"`{name}`", verdicts, size, minutes, *worth, f"`quantaudit recipe run {name}`"))
    return _table((*columns, *measured, "command"), rows)


def _observer(found: Sequence[RecipeRun], observer: str) -> str:
    levels = [fmean(run.effect.obstruction(arm.value, observer).estimate.value for run in found) for arm in _ARMS]
    gains = [_gain(found, arm, observer) for arm in _ARMS[:2]]
    return f"{', '.join(f'{level:+.4f}' for level in levels)}; {', '.join(gains)}"


def _gain(found: Sequence[RecipeRun], arm: Arm, observer: str) -> str:
    """Returns a mean reduction with mean bounds, and in how many seeds it is proved."""
    reductions = [run.effect.reduction(arm.value, observer) for run in found]
    value = fmean(r.estimate.value for r in reductions)
    lower, upper = (
        fmean(r.estimate.interval.lower for r in reductions),
        fmean(r.estimate.interval.upper for r in reductions),
    )
    proved = sum(r.is_proved for r in reductions)
    return f"{value:+.4f} [{lower:+.4f}, {upper:+.4f}] proved in {proved} of {len(reductions)}"


def _clauses(name: str, found: Sequence[RecipeRun]) -> str:
    names = [line.name for line in found[0].arm(Arm.AFTER).clauses]
    lines = [{line.name: line for line in run.arm(arm).clauses} for arm in _ARMS for run in found]
    per_arm = [lines[i * len(found) : (i + 1) * len(found)] for i in range(len(_ARMS))]
    rows = [(clause, *(_cell([seed.get(clause) for seed in arm]) for arm in per_arm)) for clause in names]
    return f"### {name}\n\n" + _table(("clause", "before", "control", "after"), rows)


def _cell(lines: Sequence[ClauseLine | None]) -> str:
    known = [line for line in lines if line is not None]
    if not known:
        return "not measured"
    outcome = _agreed([line.outcome.value for line in known])
    if any(line.damage is None or line.lower is None or line.upper is None for line in known):
        return outcome
    value, lower, upper = (fmean(getattr(line, field) for line in known) for field in ("damage", "lower", "upper"))
    return f"{value:+.4f} [{lower:+.4f}, {upper:+.4f}] {outcome}"


def _agreed(words: Sequence[str]) -> str:
    return words[0] if len(set(words)) == 1 else " or ".join(sorted(set(words)))


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
