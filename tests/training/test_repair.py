"""Both arms of a repair: what they share, what they refuse, and that a stopped one goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.recipe_file import load_recipe, recipe_names
from quantaudit.core.recipe_run import Arm
from quantaudit.engines.stored import quantize_stack
from quantaudit.numerics import get_scheme
from quantaudit.training.fake_quantize import TrainedStack
from quantaudit.training.learned_scales import LearnedScaleGroupedLinear
from quantaudit.training.repair import prepare_arm, repair_of, thin_out, train_arm
from tests.training.toy import toy_hi, toy_recipe

REPAIRS = [name for name in recipe_names() if load_recipe(name).repair is not None]


@pytest.mark.parametrize("name", REPAIRS)
def test_every_bundled_repair_fits_a_model_and_trains_by_distillation_or_labels(name: str) -> None:
    recipe = load_recipe(name)
    repaired, control = (prepare_arm(toy_hi(), recipe, arm) for arm in (Arm.AFTER, Arm.CONTROL))
    assert sum(isinstance(module, TrainedStack) for module in repaired.modules()) == 9
    assert not any(isinstance(module, TrainedStack) for module in control.modules())
    learned = any(isinstance(module, LearnedScaleGroupedLinear) for module in repaired.modules())
    assert learned is repair_of(recipe).learns_scales


@pytest.mark.parametrize("arm", [Arm.CONTROL, Arm.AFTER])
def test_a_stopped_arm_goes_on_to_the_same_bits(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy_recipe(steps=4)
    whole = train_arm(toy_hi(), recipe, arm)
    monkeypatch.setattr("quantaudit.training.repair._SAVE_EVERY", 2)

    def stop(stage: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_arm(toy_hi(), recipe, arm, folder=tmp_path, progress=stop)
    told: list[int] = []
    resumed = train_arm(toy_hi(), recipe, arm, folder=tmp_path, progress=lambda stage, done, total: told.append(done))
    assert told == [3, 4], "from the state after two steps"
    wanted = dict(whole.model.named_parameters())
    assert all(torch.equal(p, wanted[name]) for name, p in resumed.model.named_parameters())


def test_hi_itself_is_never_changed() -> None:
    hi = toy_hi()
    before = {name: p.detach().clone() for name, p in hi.model.named_parameters()}
    train_arm(hi, toy_recipe(), Arm.AFTER)
    assert all(torch.equal(p, before[name]) for name, p in hi.model.named_parameters())
    assert not any(isinstance(module, TrainedStack) for module in hi.model.modules())


def test_a_recipe_without_repair_is_refused() -> None:
    with pytest.raises(InputError, match=r"recipe 'nf4' has no \[repair\].*quantaudit run --recipe nf4"):
        repair_of(load_recipe("nf4"))


def test_a_model_that_is_stored_quantized_has_no_masters() -> None:
    hi = toy_hi()
    name = "layers.1.experts.w1"
    weight = hi.model.get_parameter("model.layers.1.block_sparse_moe.experts.w1.weight")
    held = quantize_stack(weight.detach(), get_scheme("mxfp4-even"))
    with pytest.raises(InputError, match="train from the bf16 checkpoint"):
        prepare_arm(replace(hi, stored={name: held}), toy_recipe(), Arm.AFTER)


def test_losses_are_thinned_out_to_means() -> None:
    assert thin_out([float(i) for i in range(16)]) == (0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, 14.5)
    assert thin_out([2.0]) == (2.0,)
