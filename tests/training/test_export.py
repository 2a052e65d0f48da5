"""What is exported is what was trained: codes, checkpoint and realization give the values of the last forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_run import Arm
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import Realization, apply_recipe
from quantaudit.model.lm import LanguageModel
from quantaudit.training.export import Storage, export_masters, export_packed, realize, write_export
from quantaudit.training.fake_quantize import TrainedStack
from quantaudit.training.repair import train_arm
from tests.engines.small import CPU, draw_sequences
from tests.training.toy import toy_hi, toy_recipe

NAMES = ("k3-mxfp4-w4a8-qat", "nvfp4-qad", "int3-qad", "scale-learned", "fp8-block-rl")


def trained(recipe: Recipe) -> LanguageModel:
    """Returns the repaired toy model, its last step's values forgotten."""
    return train_arm(toy_hi(), recipe, Arm.AFTER).model


def logits_of(realization: Realization) -> torch.Tensor:
    """Returns logits of a batch."""
    return NativeEngine(realization, CPU).forward(draw_sequences(9, 23)).logits_MV


@pytest.mark.parametrize("name", NAMES)
def test_packed_bytes_decode_to_the_values_that_the_trainer_computes_with(name: str) -> None:
    recipe = toy_recipe(name)
    model = trained(recipe)
    packed = export_packed(model, recipe)
    stacks = [module for module in model.modules() if isinstance(module, TrainedStack)]
    assert len(packed) == len(stacks) == 9
    for held, module in zip(packed.values(), stacks, strict=True):
        assert torch.equal(held.decode(torch.float32), module.quantized())


@pytest.mark.parametrize("name", ["k3-mxfp4-w4a8-qat", "scale-learned"])
def test_the_realization_computes_what_training_computed(name: str) -> None:
    recipe = toy_recipe(name, trained="experts")
    model = trained(recipe)
    served = realize(model, recipe)
    with torch.no_grad():
        wanted = NativeEngine(
            Realization(model=model, stored={}, activations={}, execution=served.execution), CPU
        ).forward(draw_sequences(9, 23))
    assert torch.equal(logits_of(served), wanted.logits_MV)


def open_export(folder: Path, recipe: Recipe) -> Realization:
    """Returns an exported checkpoint as it is served."""
    opened = open_realization(open_checkpoint(folder), CPU)
    return apply_recipe(opened, recipe)


@pytest.mark.parametrize("name", ["k3-mxfp4-w4a8-qat", "int3-qad", "nvfp4-qad"])
def test_the_checkpoint_serves_the_same_bits(name: str, tmp_path: Path) -> None:
    recipe = toy_recipe(name)
    model = trained(recipe)
    card = write_export(tmp_path / "out", model, recipe)
    wanted = {"k3-mxfp4-w4a8-qat": Storage.PACKED}.get(name, Storage.MASTER)
    assert set(card.storage.values()) == {wanted} and len(card.storage) == 9
    assert torch.equal(logits_of(open_export(tmp_path / "out", recipe)), logits_of(realize(model, recipe)))


def test_learned_scales_are_written_as_their_exact_values(tmp_path: Path) -> None:
    recipe = toy_recipe("scale-learned")
    model = trained(recipe)
    card = write_export(tmp_path / "out", model, recipe)
    assert set(card.storage.values()) == {Storage.DECODED}
    opened = open_realization(open_checkpoint(tmp_path / "out"), CPU)
    assert torch.equal(logits_of(opened), logits_of(realize(model, recipe)))


def test_a_control_is_rounded_to_nearest_from_its_bf16_export() -> None:
    recipe = toy_recipe()
    control = train_arm(toy_hi(), recipe, Arm.CONTROL).model
    plain = Realization(model=export_masters(control), stored={}, activations={}, execution=recipe.execution)
    assert torch.equal(logits_of(realize(control, recipe)), logits_of(apply_recipe(plain, recipe)))


def test_masters_are_exported_as_the_layout_stores_them() -> None:
    plain = export_masters(trained(toy_recipe()))
    assert plain.get_parameter("lm_head.weight").dtype is torch.bfloat16
    assert plain.get_parameter("model.layers.0.self_attn.A_log").dtype is torch.float32
    assert not [name for name, _ in plain.named_parameters() if "learned" in name]
