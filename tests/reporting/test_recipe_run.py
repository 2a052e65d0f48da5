"""The result of a recipe run says what is proved and what is not, and shows every clause of every arm."""

from __future__ import annotations

from quantaudit.core.decision import Estimate, Interval, Method, Outcome
from quantaudit.core.recipe import Gptq, Recipe, Repair, Rule
from quantaudit.core.recipe_run import (
    Arm,
    ArmSummary,
    ClauseLine,
    Effect,
    Obstruction,
    RecipeRun,
    Reduction,
    TrainingSummary,
)
from quantaudit.core.verdict import Admission
from quantaudit.reporting.recipe_run import render_recipe_run, summarize_recipe_run

REPAIR = Repair(steps=3, learning_rate=1e-3, cross_entropy=1.0, families={"facts": 1.0})
OBSERVERS = {"nll": "nats/token", "kl-forward": "nats/token", "answer-margin": "nats"}
RECIPE = Recipe(name="mine", description="A | test.", rules=(Rule(match="*", weight="int3-g32"),), repair=REPAIR)


def estimate(value: float, half: float) -> Estimate:
    """Returns an estimate with a symmetric interval."""
    return Estimate(
        value=value,
        standard_error=half / 2,
        degrees_of_freedom=30.0,
        interval=Interval(lower=value - half, upper=value + half, level=0.95),
        num_probes=300,
        num_clusters=31,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.CR1,
    )


def arm(which: Arm, verdict: Admission) -> ArmSummary:
    """Returns a summary with one exact clause and one with a number."""
    lines = (
        ClauseLine(name="integrity", unit="", damage=None, lower=None, upper=None, outcome=Outcome.PASS),
        ClauseLine(name="task[facts]", unit="share", damage=0.03, lower=0.01, upper=0.05, outcome=Outcome.FAIL),
    )
    return ArmSummary(
        arm=which,
        verdict=verdict,
        weights_digest="ab",
        stored_bits_per_expert_weight=4.25,
        expert_bytes=1234567,
        report_digest="0123456789abcdef",
        clauses=lines,
    )


def sample_run() -> RecipeRun:
    """Returns a run whose gain over the control is proved and whose gain over round-to-nearest is not."""
    effect = Effect(
        probes_digest="cd",
        num_probes=300,
        obstructions=tuple(
            Obstruction(arm=a.value, observer=name, unit=unit, estimate=estimate(0.1, 0.02))
            for name, unit in OBSERVERS.items()
            for a in Arm
        ),
        reductions=tuple(
            Reduction(before=before, after="after", observer=name, unit=unit, estimate=gain)
            for name, unit in OBSERVERS.items()
            for before, gain in (("before", estimate(0.01, 0.02)), ("control", estimate(0.05, 0.01)))
        ),
    )
    return RecipeRun(
        recipe=RECIPE,
        seed=2,
        hi_source="embedded model",
        hi_digest="ef",
        arms=(arm(Arm.BEFORE, Admission.REJECT), arm(Arm.CONTROL, Admission.REJECT), arm(Arm.AFTER, Admission.ADMIT)),
        trainings=(TrainingSummary(arm=Arm.AFTER, steps=3, losses=(1.0,), seconds=2.0),),
        effect=effect,
        gap=None,
        notes=("a note",),
        seconds=90.0,
        command="quantaudit recipe run mine --seed 2",
    )


def test_the_terminal_says_what_is_proved() -> None:
    lines = summarize_recipe_run(sample_run()).splitlines()
    assert lines[0] == "mine (seed 2): before REJECT, control REJECT, after ADMIT"
    assert lines[1].endswith("(not proved)") and "against before" in lines[1]
    assert not lines[2].endswith("(not proved)") and "+0.05 [+0.04, +0.06]" in lines[2]


def test_the_page_holds_every_clause_of_every_arm_and_escapes_text() -> None:
    page = render_recipe_run(sample_run())
    assert "A \\| test." in page
    assert page.count("| integrity | pass | pass | pass |") == 1
    assert "+3.0 pts [+1.0 pts, +5.0 pts] fail" in page
    assert "1,234,567" in page and "1.5 minutes" in page


def test_a_result_survives_its_json() -> None:
    run = sample_run()
    assert RecipeRun.from_json(run.to_json()) == run
    assert run.arm(Arm.AFTER).verdict is Admission.ADMIT
    assert run.effect.reduction("control", "nll").is_proved


def test_what_was_not_trained_is_not_called_repaired() -> None:
    run = sample_run()
    recipe = run.recipe.model_copy(update={"repair": None, "gptq": Gptq()})
    page = render_recipe_run(run.model_copy(update={"recipe": recipe}))
    assert "rounded by GPTQ, without training" in page and "| repaired |" not in page
    assert "| repaired |" in render_recipe_run(run)
