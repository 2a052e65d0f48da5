"""The result of a recipe run: a few lines for the terminal, and everything as markdown.

First what the repair is worth, then every clause before, in the control, and after.
"""

from __future__ import annotations

from quantaudit.core.recipe_run import Arm, ArmSummary, ClauseLine, Effect, RecipeRun, Reduction
from quantaudit.reporting.markdown_text import bullets, code, prose, table
from quantaudit.reporting.quantity import write_bounds, write_quantity

_ARMS = {
    Arm.BEFORE: "rounded to nearest",
    Arm.CONTROL: "control: trained without fake quantization, then rounded",
    Arm.AFTER: "repaired",
}
_AFTER_GPTQ = "rounded by GPTQ, without training"


def render_recipe_run(run: RecipeRun) -> str:
    """Returns the whole result as markdown."""
    parts = [
        f"# {code(run.recipe.name)} on {prose(run.hi_source)}, seed {run.seed}",
        prose(run.recipe.description),
        _arms(run),
        "## What GPTQ is worth" if run.recipe.gptq else "## What the repair is worth",
        "O_Q is the mean damage over probes, positive where the deployment is worse than hi; a reduction is paired by "
        "probe, and above zero where the model is better afterwards. Intervals know the clusters.",
        _effect(run.effect),
        *_gap(run),
        "## Every clause",
        _clauses(run),
        "## Notes",
        bullets((*run.recipe.notes, *run.notes)),
        f"Made by {code(run.command)} in {run.seconds / 60:.1f} minutes.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summarize_recipe_run(run: RecipeRun) -> str:
    """Returns a few lines for the terminal."""
    verdicts = ", ".join(f"{a.arm} {a.verdict}" for a in run.arms)
    lines = [f"{run.recipe.name} (seed {run.seed}): {verdicts}"]
    for reduction in run.effect.reductions:
        lines.append(
            f"  {reduction.observer:<14} {_from(reduction.before)} {_number(reduction)}"
            f"{'' if reduction.is_proved else '  (not proved)'}"
        )
    return "\n".join(lines) + "\n"


def _from(arm: str) -> str:
    return f"reduced against {arm + ':':<9}"


def _number(reduction: Reduction) -> str:
    estimate = reduction.estimate
    value = write_quantity(estimate.value, reduction.unit, is_difference=True)
    return f"{value} {write_bounds(estimate.interval, reduction.unit, is_difference=True)}"


def _arms(run: RecipeRun) -> str:
    rows = [
        (
            _arm_name(run, a.arm),
            str(a.verdict),
            _bits(a),
            f"{a.expert_bytes:,}",
            code(a.report_digest[:12], in_table=True),
        )
        for a in run.arms
    ]
    return table(("arm", "verdict", "bits per expert weight", "bytes of experts", "report"), rows)


def _bits(arm: ArmSummary) -> str:
    bits = arm.stored_bits_per_expert_weight
    return "not measured" if bits is None else f"{bits:.2f}"


def _effect(effect: Effect) -> str:
    observers = list(dict.fromkeys(o.observer for o in effect.obstructions))
    arms = list(dict.fromkeys(o.arm for o in effect.obstructions))
    header = ("observer", *(f"O_Q {arm}" for arm in arms), *(f"reduction against {arm}" for arm in arms[:-1]))
    rows = []
    for observer in observers:
        found = [effect.obstruction(arm, observer) for arm in arms]
        gained = [effect.reduction(arm, observer) for arm in arms[:-1]]
        cells = [f"{write_quantity(o.estimate.value, o.unit, is_difference=True)}" for o in found]
        proofs = [_number(r) + (" proved" if r.is_proved else "") for r in gained]
        rows.append((f"{prose(observer)} ({prose(found[0].unit)})", *cells, *proofs))
    return table(header, rows)


def _gap(run: RecipeRun) -> tuple[str, ...]:
    if run.gap is None:
        return ()
    rows = [
        (
            prose(o.observer),
            write_quantity(o.estimate.value, o.unit, is_difference=True),
            write_bounds(o.estimate.interval, o.unit, is_difference=True),
        )
        for o in run.gap.obstructions
    ]
    return (
        "The quantization gap explains and does not gate: the repaired model in its masters against itself quantized.",
        table(("observer", "O_Q", "interval"), rows),
    )


def _arm_name(run: RecipeRun, arm: Arm) -> str:
    return _AFTER_GPTQ if arm is Arm.AFTER and run.recipe.gptq else _ARMS[arm]


def _clauses(run: RecipeRun) -> str:
    names = list(dict.fromkeys(line.name for arm in run.arms for line in arm.clauses))
    found = {arm.arm: {line.name: line for line in arm.clauses} for arm in run.arms}
    rows = [(prose(name), *(_cell(found[arm.arm].get(name)) for arm in run.arms)) for name in names]
    return table(("clause", *(str(arm.arm) for arm in run.arms)), rows)


def _cell(line: ClauseLine | None) -> str:
    if line is None:
        return "not measured"
    if line.damage is None or line.lower is None or line.upper is None:
        return str(line.outcome)
    damage = write_quantity(line.damage, line.unit, is_difference=True)
    bounds = ", ".join(write_quantity(b, line.unit, is_difference=True) for b in (line.lower, line.upper))
    return f"{damage} [{bounds}] {line.outcome}"
