"""From a model in training to what is served: packed codes, a checkpoint, a runnable realization.

What is exported is what was trained: the codes are those behind the last forward's fake-quantized values, with their
own scales, learned ones too. They are packed in the layouts that public engines read (`checkpoint.packed`). A stack
whose scheme no layout holds is written as its bf16 master, from which the scheme makes the same codes when the recipe
is applied. `export.json` says which is which.

A model that was not prepared (a control arm) is exported by rounding its weights to nearest under the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor, nn

from quantaudit.checkpoint.packed import MODELOPT_NVFP4, NVFP4, PackedFormat, Packing
from quantaudit.checkpoint.packed_tensors import can_divide, packing_of, stored_scale_dtype
from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.recipe import Execution, Recipe
from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.realization import Realization, apply_recipe, assign_rules, module_name
from quantaudit.engines.stored import StoredTensor, quantize_stack, restore, store
from quantaudit.model.linear import GroupedLinear
from quantaudit.model.lm import LanguageModel
from quantaudit.numerics import QuantizedTensor
from quantaudit.training.fake_quantize import FakeQuantizedGroupedLinear, TrainedStack, schemes_of
from quantaudit.training.learned_scales import LearnedScaleGroupedLinear
from quantaudit.training.optimizers import SCALE


class Storage(StrEnum):
    """How a quantized stack lies in an exported checkpoint."""

    PACKED = "packed"
    MASTER = "bf16 master, to which the recipe is applied"


class ExportCard(Frozen):
    """`export.json`: what an exported checkpoint holds.

    Attributes:
        recipe: Name of the recipe.
        recipe_digest: Its digest.
        arithmetic: Stack -> digest of the arithmetic of its scheme.
        storage: Stack -> how it lies in the files.
        formats: Stack -> the layout, of those that are packed.
        notes: What whoever loads the files has to know.
    """

    recipe: str
    recipe_digest: str
    arithmetic: dict[str, str]
    storage: dict[str, Storage]
    formats: dict[str, PackedFormat] = {}
    notes: tuple[str, ...] = ()


def export_packed(model: LanguageModel, recipe: Recipe) -> dict[str, StoredTensor]:
    """Returns the packed stacks by module name (`layers.3.experts.w1`).

    Raises:
        InputError: If a rule decides no stack.
    """
    stacks = dict(_stacks(model))
    packed: dict[str, StoredTensor] = {}
    for name, rule in assign_rules(list(stacks), recipe).items():
        scheme, _ = schemes_of(rule, name, stacks[name].weight.shape[-1])
        if scheme is not None:
            packed[name] = _pack(stacks[name], scheme)
    return packed


def _stacks(model: LanguageModel) -> Iterator[tuple[str, TrainedStack | GroupedLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, TrainedStack | GroupedLinear):
            yield module_name(path), module


def _pack(module: TrainedStack | GroupedLinear, scheme: Scheme) -> StoredTensor:
    if isinstance(module, LearnedScaleGroupedLinear):
        return store(module.quantized_tensor())
    if isinstance(module, FakeQuantizedGroupedLinear):
        return quantize_stack(module.exported(), scheme)
    return quantize_stack(module.weight.detach().to(torch.bfloat16), scheme)


def export_masters(model: LanguageModel) -> LanguageModel:
    """Returns a plain model whose parameters are the masters as they are stored, bf16 or F32."""
    with torch.device("meta"):
        plain = LanguageModel(model.config)
    named = ((n, p.detach()) for n, p in model.named_parameters() if not n.endswith(SCALE))
    for name, value in round_to_storage(named, model.config):
        path, _, leaf = name.rpartition(".")
        module = plain.get_submodule(path)
        is_trained = module.get_parameter(leaf).requires_grad
        setattr(module, leaf, nn.Parameter(value.clone(), requires_grad=is_trained))
    return plain


def realize(model: LanguageModel, recipe: Recipe) -> Realization:
    """Returns the trained model as it is served under the recipe: its own codes, and the recipe's activations."""
    packed = export_packed(model, recipe)
    trained = Realization(model=export_masters(model), stored=packed, activations={}, execution=Execution())
    return replace(apply_recipe(trained, recipe), notes=recipe.notes)


def write_export(folder: Path, model: LanguageModel, recipe: Recipe, *, shard_bytes: int | None = None) -> ExportCard:
    """Writes the trained model as a checkpoint in the Kimi K3 layout, its experts packed where a format holds them.

    Args:
        folder: Folder to create.
        model: Prepared and trained, or plain.
        recipe: Its recipe, with what calibration chose.
        shard_bytes: Size at which a shard is closed; `None` writes one file.

    Raises:
        InputError: If the folder is there already.
    """
    return write_stacks(folder, export_masters(model), export_packed(model, recipe), recipe, shard_bytes=shard_bytes)


def write_stacks(
    folder: Path,
    plain: LanguageModel,
    packed: dict[str, StoredTensor],
    recipe: Recipe,
    *,
    shard_bytes: int | None = None,
) -> ExportCard:
    """Writes a model and its quantized stacks, wherever their codes came from; see `write_export`.

    Args:
        folder: Folder to create.
        plain: Its parameters as they are stored; a stack that no layout holds is written as its master from here.
        packed: Quantized stacks by module name.
        recipe: What they were made under.
        shard_bytes: Size at which a shard is closed; `None` writes one file.

    Raises:
        InputError: If the folder is there already.
    """
    packings = choose_packings(packed)
    values = ((path, _stored_value(path, p.detach(), packed, packings)) for path, p in plain.named_parameters())
    nvfp4 = NVFP4 if NVFP4 in packings.values() else MODELOPT_NVFP4
    write_checkpoint(folder, plain.config, values, scheme=None, shard_bytes=shard_bytes, nvfp4=nvfp4, is_partial=True)
    card = ExportCard(
        recipe=recipe.name,
        recipe_digest=recipe.digest(),
        arithmetic={name: held.scheme.arithmetic_digest for name, held in packed.items()},
        storage={name: Storage.PACKED if name in packings else Storage.MASTER for name in packed},
        formats={name: packing.format for name, packing in packings.items()},
        notes=(*_notes(packed, packings), *_activation_notes(packed, recipe)),
    )
    write_atomically(folder / "export.json", card.to_json().encode())
    return card


def choose_packings(packed: dict[str, StoredTensor]) -> dict[str, Packing]:
    """Returns how each stack is packed; those that no format holds are left out.

    NVFP4 is written in the convention of compressed-tensors if that holds every upper scale of the checkpoint, else in
    that of TensorRT Model Optimizer, which no configuration declares beside other formats: in a checkpoint of several
    its stacks stay masters.
    """
    found = {name: packing_of(held.scheme) for name, held in packed.items()}
    nvfp4 = [name for name, packing in found.items() if packing == MODELOPT_NVFP4]
    if nvfp4 and all(can_divide(restore(packed[name])) for name in nvfp4):
        found |= dict.fromkeys(nvfp4, NVFP4)
    elif any(packing not in (None, MODELOPT_NVFP4) for packing in found.values()):
        found |= dict.fromkeys(nvfp4, None)
    return {name: packing for name, packing in found.items() if packing is not None}


def _notes(packed: dict[str, StoredTensor], packings: dict[str, Packing]) -> Iterator[str]:
    """Yields what an engine could get wrong."""
    masters = sorted({held.scheme.name for name, held in packed.items() if name not in packings})
    if masters:
        yield (
            f"No layout of this checkpoint holds {' and '.join(masters)}: those experts are bf16 masters, which are "
            "served under the recipe."
        )
    wide = [
        name
        for name, packing in packings.items()
        if packing.format is PackedFormat.INTEGERS and stored_scale_dtype(restore(packed[name])) is torch.float32
    ]
    if wide:
        yield (
            f"The scales of {len(wide)} integer stacks are fp32, as they were trained; an engine that loads them into "
            "bf16 rounds them and serves other values."
        )


def _activation_notes(packed: dict[str, StoredTensor], recipe: Recipe) -> Iterator[str]:
    """Yields what no file says: like the release of Kimi K3, the configuration declares no activations."""
    rules = [recipe.rule_for(name) for name in packed]
    trained = sorted({rule.activation for rule in rules if rule is not None and rule.activation is not None})
    if trained:
        yield (
            f"The inputs of these experts were trained in {' and '.join(trained)}; config.json declares no quantized "
            "activations, so an engine has to be told."
        )


def _stored_value(
    path: str, value: Tensor, packed: dict[str, StoredTensor], packings: dict[str, Packing]
) -> Tensor | QuantizedTensor:
    """Returns what the file holds of a parameter."""
    name = module_name(path.removesuffix(".weight"))
    return restore(packed[name]) if name in packings else value
