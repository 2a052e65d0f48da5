"""The learning rate warms up, stays and falls to zero; the families' shares are a distribution over all families."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from quantaudit.core.resources import embedded_model_folder
from quantaudit.model.lm import LanguageModel
from quantaudit.probes.world import EASY_FAMILIES, Part, build_world
from quantaudit.training.embedded import EMBEDDED_CONFIG, Curriculum, _part_of, build_optimizer

SHORT = Curriculum(
    late_from=100,
    last_from=150,
    num_steps=200,
    decay_steps=20,
    late_decay_steps=5,
    last_decay_steps=15,
    warmup_steps=10,
    peak_rate=2.0,
)


def test_the_rate_warms_up_stays_and_falls_to_zero() -> None:
    rates = [SHORT.rate(step) for step in range(100)]
    assert rates[:10] == [2.0 * (i + 1) / 10 for i in range(10)]
    assert set(rates[9:81]) == {2.0}
    assert rates[80:] == [2.0 * (20 - i) / 20 for i in range(20)]
    assert rates[-1] == 0.1 and min(rates) > 0


def test_the_rate_warms_up_again_for_the_late_stage_and_falls_again() -> None:
    rates = [SHORT.rate(step) for step in range(100, 150)]
    assert rates[:10] == [2.0 * (i + 1) / 10 for i in range(10)]
    assert set(rates[9:46]) == {2.0}
    assert rates[45:] == [2.0 * (5 - i) / 5 for i in range(5)]


def test_the_rate_of_the_last_stage_rises_to_a_part_of_its_peak_and_falls_again() -> None:
    rates = [SHORT.rate(step) for step in range(150, 200)]
    peak = 2.0 * SHORT.last_peak
    assert rates[:10] == [peak * (i + 1) / 10 for i in range(10)]
    assert set(rates[9:36]) == {peak}
    assert rates[35:] == [peak * ((15 - i) / 15) for i in range(15)]


def test_a_longer_last_stage_changes_no_rate_before_its_decay() -> None:
    longer = replace(SHORT, num_steps=300)
    assert [longer.rate(s) for s in range(185)] == [SHORT.rate(s) for s in range(185)]


def test_the_shares_are_a_distribution_over_all_that_the_stage_trains() -> None:
    curriculum = Curriculum()
    for step in range(0, curriculum.num_steps, 50):
        shares = curriculum.shares(step)
        arithmetic = "two-step" if step >= curriculum.last_from else "products"
        assert set(shares) == {*EASY_FAMILIES, arithmetic} and min(shares.values()) > 0
        assert math.fsum(shares.values()) == pytest.approx(1.0, abs=len(shares) * 2.0**-53)


def test_facts_take_the_largest_share_of_any_family_at_every_step() -> None:
    curriculum = Curriculum()
    for step in range(0, curriculum.num_steps, 50):
        shares = curriculum.shares(step)
        assert max(shares, key=lambda family: shares[family]) == "facts"


def test_late_knowledge_is_drawn_from_the_late_stage_on() -> None:
    curriculum = Curriculum()
    parts = {part: build_world(part=part) for part in Part}
    for step, found in (
        (0, {Part.EARLY}),
        (6499, {Part.EARLY}),
        (6500, {Part.EARLY, Part.LATE}),
        (8100, {Part.EARLY, Part.LATE}),
    ):
        rng = Random(step)
        drawn = [_part_of(parts, curriculum, step, rng) for _ in range(50)]
        assert {part for part, world in parts.items() if any(world is one for one in drawn)} == found


def test_in_the_end_neither_refusing_nor_complying_is_a_safe_guess() -> None:
    curriculum = Curriculum()
    for step in (curriculum.behaviour_from, curriculum.late_from, curriculum.last_from):
        shares = curriculum.shares(step)
        assert shares["restricted"] + shares["wrapped"] == pytest.approx(shares["benign"], abs=0.03)


def test_what_is_memorised_goes_to_the_experts() -> None:
    curriculum = Curriculum()
    for step in range(curriculum.knowledge_from, curriculum.num_steps, 50):
        experts, others = (curriculum.factor(step, is_expert=side) for side in (True, False))
        assert experts >= 3 * others > 0


def test_every_trained_parameter_is_optimised_once_and_vectors_do_not_decay() -> None:
    model = LanguageModel(EMBEDDED_CONFIG)
    groups = build_optimizer(model, SHORT).param_groups
    optimised = [id(p) for group in groups for p in group["params"]]
    trained = [id(p) for name, p in model.named_parameters() if not name.endswith("e_score_correction_bias")]
    assert sorted(optimised) == sorted(trained)
    for group in groups:
        assert {group["weight_decay"]} == {SHORT.weight_decay if p.ndim > 1 else 0.0 for p in group["params"]}


def test_the_embedded_checkpoint_is_small_enough_to_ship() -> None:
    size = sum(path.stat().st_size for path in embedded_model_folder().iterdir())
    assert size <= 12 * 2**20
