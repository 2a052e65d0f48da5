"""Calibration keeps the stacks whose error meets the load, and reads the select split."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Split
from quantaudit.core.recipe import Calibration
from quantaudit.numerics import fake_quantize, get_scheme
from quantaudit.probes.world import default_probes
from quantaudit.training.calibrate import calibrate, measure_load, rank_stacks, weight_error
from tests.engines.small import CPU, experts_in
from tests.training.toy import toy_hi

PROBES = default_probes(Split.SELECT, {"facts": 4, "copying": 4})
RECIPE = experts_in("int2-g32").model_copy(update={"calibration": Calibration(scheme="int8-channel", stacks=2)})


def test_the_stack_that_suffers_most_is_kept() -> None:
    hi = toy_hi()
    spoiled = hi.model.get_parameter("model.layers.2.block_sparse_moe.experts.w3.weight")
    with torch.no_grad():
        spoiled.mul_(10.0)
    chosen = calibrate(hi, RECIPE, CPU, probes=PROBES)
    assert [rule.match for rule in chosen.rules[:-1]].count("layers.2.experts.w3") == 1
    assert len(chosen.rules) == 3
    assert all(rule.weight == "int8-channel" for rule in chosen.rules[:-1])
    assert chosen.rules[-1] == RECIPE.rules[-1]
    assert "layers.2.experts.w3" in chosen.notes[-1]


def test_an_expert_without_rows_does_not_count() -> None:
    hi = toy_hi()
    load = measure_load(hi, CPU, PROBES)[1]
    name = "layers.1.experts.w1"
    weight = hi.model.get_parameter("model.layers.1.block_sparse_moe.experts.w1.weight")
    error = weight_error(weight.detach(), "int2-g32")
    found = rank_stacks(hi, RECIPE, CPU, PROBES)[name]
    assert found == pytest.approx(float((load * error).sum()), rel=1e-12)
    assert float(load.sum()) == pytest.approx(1.0, abs=8 * 2.0**-52)
    assert float(load.max()) > float(load.min()) >= 0.0


def test_the_error_is_squared_and_expert_by_expert() -> None:
    weight = torch.randn(2, 4, 32)
    wanted = (weight - fake_quantize(weight, get_scheme("int2-g32"))).double().square()
    assert weight_error(weight, "int2-g32").tolist() == pytest.approx([float(w.sum()) for w in wanted], rel=1e-12)


def test_a_recipe_without_calibration_is_left_alone() -> None:
    recipe = experts_in("int2-g32")
    assert calibrate(toy_hi(), recipe, CPU) is recipe


def test_more_stacks_than_there_are_cannot_be_kept() -> None:
    greedy = RECIPE.model_copy(update={"calibration": Calibration(scheme="int8-channel", stacks=9)})
    with pytest.raises(InputError, match="fewer than the 9 stacks"):
        calibrate(toy_hi(), greedy, CPU, probes=PROBES)
