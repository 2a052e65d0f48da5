"""What is exported is what was trained: codes, checkpoint and realization give the values of the last forward."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch

from quantaudit.checkpoint.packed import PackedFormat
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_run import Arm
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization, open_served
from quantaudit.engines.realization import Realization, apply_recipe, module_name, weight_values
from quantaudit.model.lm import LanguageModel
from quantaudit.training.export import (
    ExportCard,
    Storage,
    choose_packings,
    export_masters,
    export_packed,
    realize,
    write_export,
)
from quantaudit.training.fake_quantize import TrainedStack
from quantaudit.training.learned_scales import LearnedScaleGroupedLinear
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


FORMATS = {
    "k2-int4-qat": PackedFormat.INTEGERS,
    "k3-mxfp4-w4a8-qat": PackedFormat.MXFP4,
    "nvfp4-qad": PackedFormat.MODELOPT_NVFP4,
    "int3-qad": PackedFormat.INTEGERS,
    "int2-qad": PackedFormat.INTEGERS,
    "fp8-block-rl": PackedFormat.FP8,
    "mxfp8-rl": PackedFormat.MXFP8,
    "scale-learned": PackedFormat.INTEGERS,
}


@lru_cache(maxsize=8)
def exported(name: str) -> LanguageModel:
    """Returns the toy model after two steps of a recipe; its stacks keep the values of the next forward."""
    return trained(toy_recipe(name, steps=2))


def last_values(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Returns the fake-quantized values that the next forward computes with, by module name."""
    return {
        module_name(path): module.quantized()
        for path, module in model.named_modules()
        if isinstance(module, TrainedStack)
    }


def open_export(folder: Path, recipe: Recipe) -> Realization:
    """Returns an exported checkpoint as it is served."""
    opened = open_realization(open_checkpoint(folder), CPU)
    return apply_recipe(opened, recipe)


@pytest.mark.parametrize(
    ("name", "shard_bytes"), [*((name, None) for name in FORMATS), ("int3-qad", 40_000), ("nvfp4-qad", 40_000)]
)
def test_the_files_hold_the_values_of_the_last_forward(name: str, shard_bytes: int | None, tmp_path: Path) -> None:
    recipe, model = toy_recipe(name, steps=2), exported(name)
    card = write_export(tmp_path / "out", model, recipe, shard_bytes=shard_bytes)
    assert set(card.storage.values()) == {Storage.PACKED} and len(card.storage) == 9
    assert set(card.formats.values()) == {FORMATS[name]} and card.formats.keys() == card.storage.keys()
    assert ExportCard.from_json((tmp_path / "out" / "export.json").read_text()) == card
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.precision.as_declared and checkpoint.precision.declared is FORMATS[name]
    assert (len(checkpoint.index.files) > 1) == (shard_bytes is not None)
    wanted = last_values(model)
    for served in (open_realization(checkpoint, CPU), open_served(checkpoint, CPU)):
        values = dict(weight_values(served))
        assert all(torch.equal(values[stack].float(), wanted[stack]) for stack in wanted)
        assert served.stored.keys() == wanted.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_the_checkpoint_serves_the_same_bits(name: str, tmp_path: Path) -> None:
    recipe, model = toy_recipe(name, steps=2), exported(name)
    write_export(tmp_path / "out", model, recipe)
    # Under the recipe, whose codes it keeps as they are, and without, as another engine would load it.
    assert torch.equal(logits_of(open_export(tmp_path / "out", recipe)), logits_of(realize(model, recipe)))


def test_learned_scales_are_packed_as_they_are(tmp_path: Path) -> None:
    recipe, model = toy_recipe("scale-learned", steps=2), exported("scale-learned")
    card = write_export(tmp_path / "out", model, recipe)
    opened = open_realization(open_checkpoint(tmp_path / "out"), CPU)
    stacks = {module_name(p): m for p, m in model.named_modules() if isinstance(m, LearnedScaleGroupedLinear)}
    assert len(stacks) == 9
    for name, module in stacks.items():
        scales = opened.stored[name].scales
        assert scales.dtype is torch.float32 and torch.equal(scales, module.learned_scale.detach())
        assert not torch.equal(scales.to(torch.bfloat16).float(), scales), "else rounding them would go unnoticed"
    assert card.notes == (
        "The scales of 9 integer stacks are fp32, as they were trained; an engine that loads them into bf16 rounds "
        "them and serves other values.",
    )


@pytest.mark.parametrize("name", FORMATS)
def test_activations_that_no_file_declares_are_noted(name: str, tmp_path: Path) -> None:
    recipe = toy_recipe(name, steps=2)
    notes = write_export(tmp_path / "out", exported(name), recipe).notes
    activation = recipe.rules[0].activation
    assert any("config.json declares no quantized activations" in note for note in notes) == (activation is not None)
    assert activation is None or any(f"trained in {activation};" in note for note in notes)


def test_what_no_layout_holds_stays_a_master(tmp_path: Path) -> None:
    recipe = toy_recipe("int3-qad", steps=2)
    recipe = recipe.model_copy(update={"rules": (recipe.rules[0].model_copy(update={"weight": "nf4-b64"}),)})
    model = trained(recipe)
    card = write_export(tmp_path / "out", model, recipe)
    assert set(card.storage.values()) == {Storage.MASTER} and card.formats == {}
    assert "No layout of this checkpoint holds nf4-b64" in card.notes[0]
    assert open_checkpoint(tmp_path / "out").precision.declared is None
    assert torch.equal(logits_of(open_export(tmp_path / "out", recipe)), logits_of(realize(model, recipe)))


def test_stacks_of_several_widths_are_packed_each_in_its_own(tmp_path: Path) -> None:
    recipe = toy_recipe("int2-qad", steps=2)
    wider = recipe.rules[0].model_copy(update={"match": "layers.*.experts.w2", "weight": "int4-g32-div7.5"})
    recipe = recipe.model_copy(update={"rules": (wider, *recipe.rules)})
    model = trained(recipe)
    write_export(tmp_path / "out", model, recipe)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.precision.as_declared and checkpoint.precision.declared is PackedFormat.INTEGERS
    opened = open_realization(checkpoint, CPU)
    assert {name[-2:]: held.scheme.element.bits for name, held in opened.stored.items()} == {"w1": 2, "w2": 4, "w3": 2}
    wanted = last_values(model)
    assert all(torch.equal(dict(weight_values(opened))[name], values) for name, values in wanted.items())


def test_stacks_without_a_rule_are_not_declared(tmp_path: Path) -> None:
    recipe = toy_recipe("int3-qad", steps=2)
    rule = recipe.rules[0].model_copy(update={"match": "layers.*.experts.w2"})
    recipe = recipe.model_copy(update={"rules": (rule,)})
    write_export(tmp_path / "out", trained(recipe), recipe)
    precision = open_checkpoint(tmp_path / "out").precision
    assert precision.as_declared and 0 < precision.num_packed < precision.num_matrices


def test_nvfp4_beside_another_format_stays_a_master() -> None:
    recipe = toy_recipe("nvfp4-qad", steps=2)
    other = recipe.rules[0].model_copy(update={"match": "layers.*.experts.w2", "weight": "int4-g32-div7.5"})
    recipe = recipe.model_copy(update={"rules": (other, *recipe.rules)})
    packings = choose_packings(export_packed(trained(recipe), recipe))
    assert {name[-2:] for name in packings} == {"w2"}


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
