"""A step of training: accumulation, distillation from hi, frozen or balanced routers, bad losses, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import OptimizerKind, Recipe, Trained
from quantaudit.core.recipe_run import Arm
from quantaudit.training.qat import QatTrainer
from quantaudit.training.repair import prepare_arm, repair_of, train_arm
from tests.training.toy import toy_hi, toy_model, toy_recipe

BIAS = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"


def trainer_of(recipe: Recipe, arm: Arm = Arm.AFTER) -> QatTrainer:
    """Returns a trainer of the toy model."""
    return QatTrainer(prepare_arm(toy_hi(), recipe, arm), toy_model(), repair_of(recipe))


def bits(trainer: QatTrainer) -> dict[str, torch.Tensor]:
    """Returns a copy of all parameters."""
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_training_lowers_the_loss_of_its_own_items(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy_recipe("int2-qad", steps=12, learning_rate=3e-3)
    trainer = trainer_of(recipe)
    always = trainer._stream.batches(0)
    monkeypatch.setattr(trainer._stream, "batches", lambda step: always)
    losses = [trainer.take_step() for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]


def test_micro_batches_change_no_more_than_the_order_of_sums() -> None:
    whole, pieces = (trainer_of(toy_recipe(micro_batches=count)) for count in (1, 3))
    one, three = whole.take_step(), pieces.take_step()
    # sums of a few thousand products of order one, in another order
    assert three == pytest.approx(one, rel=1e-4)


def test_the_control_arm_meets_the_same_items_and_no_rounding() -> None:
    recipe = toy_recipe()
    control = trainer_of(recipe, Arm.CONTROL)
    repaired = trainer_of(recipe)
    assert control._stream.draw(3) == repaired._stream.draw(3)
    distilled = toy_recipe(cross_entropy=0.0)
    # hi against itself: sums of exp and log of 260 terms
    assert trainer_of(distilled, Arm.CONTROL).take_step() == pytest.approx(0.0, abs=260 * 2.0**-22)
    assert trainer_of(distilled).take_step() > 0.01


@pytest.mark.parametrize("name", ["int3-qad", "scale-learned", "router-frozen"])
@pytest.mark.parametrize("optimizer", OptimizerKind)
def test_a_run_that_was_stopped_has_the_bits_of_a_whole_one(
    name: str, optimizer: OptimizerKind, tmp_path: Path
) -> None:
    recipe = toy_recipe(name, optimizer=optimizer, balances_routers=True)
    whole = trainer_of(recipe)
    for _ in range(3):
        whole.take_step()
    cut = trainer_of(recipe)
    cut.take_step()
    cut.save(tmp_path)
    resumed = trainer_of(recipe)
    assert resumed.load(tmp_path)
    assert resumed.step == 1
    for _ in range(2):
        resumed.take_step()
    wanted = bits(whole)
    assert all(torch.equal(value, wanted[key]) for key, value in bits(resumed).items())
    assert not all(torch.equal(value, wanted[key]) for key, value in bits(cut).items())


def test_the_state_of_another_repair_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(toy_recipe())
    trainer.save(tmp_path)
    with pytest.raises(InputError, match="the state of another repair"):
        trainer_of(toy_recipe(seed=1)).load(tmp_path)
    assert not trainer.load(tmp_path / "nothing")


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(toy_recipe())
    trainer.save(tmp_path)
    (tmp_path / "run.safetensors").write_bytes(b"no state")
    with pytest.raises(InputError, match="expected the state of a run; remove it"):
        trainer.load(tmp_path)


def test_a_loss_that_is_not_finite_stops_before_the_model_changes() -> None:
    trainer = trainer_of(toy_recipe())
    with torch.no_grad():
        trainer.model.lm_head.weight.fill_(float("nan"))
    before = bits(trainer)
    with pytest.raises(InputError, match=r"a loss of nan in step 1 of 4.*lower learning_rate"):
        trainer.take_step()
    assert trainer.step == 0
    assert all(torch.equal(value, before[key]) for key, value in bits(trainer).items() if "lm_head" not in key)


@pytest.mark.parametrize("balances", [True, False])
def test_routers_are_balanced_or_frozen(*, balances: bool) -> None:
    trainer = trainer_of(toy_recipe(balances_routers=balances))
    before = bits(trainer)
    trainer.take_step()
    assert torch.equal(bits(trainer)[BIAS], before[BIAS]) is not balances


def test_only_what_the_repair_trains_moves() -> None:
    trainer = trainer_of(toy_recipe(trained=Trained.EXPERTS))
    before = bits(trainer)
    trainer.take_step()
    moved = {name for name, value in bits(trainer).items() if not torch.equal(value, before[name])}
    assert moved and all(".experts." in name for name in moved)


def test_bf16_masters_are_trained_in_the_dtypes_of_the_layout() -> None:
    hi = toy_hi()
    hi.model.to(torch.bfloat16)
    recipe = toy_recipe(masters="bfloat16", learning_rate=3e-2)
    trained = train_arm(hi, recipe, Arm.AFTER)
    assert {p.dtype for p in trained.model.parameters()} == {torch.bfloat16}
    assert len(trained.summary.losses) == 4


def test_distillation_without_hi_is_refused() -> None:
    recipe = toy_recipe()
    with pytest.raises(InputError, match="without hi"):
        QatTrainer(prepare_arm(toy_hi(), recipe, Arm.AFTER), None, repair_of(recipe)).take_step()
