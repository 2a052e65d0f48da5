"""From a model in training to what is served: packed codes, a checkpoint, a runnable realization.

What is exported is what was trained: the codes are those behind the last forward's fake-quantized values. A stack in an
mxfp4 scheme is packed in the layout of Kimi K3. The layout has no codes for other schemes: such a stack is written as
its bf16 master, from which the scheme makes the same codes when the recipe is applied, or, where its scales were
learned, as its decoded values in fp32. `export.json` says which is which.

A model that was not prepared (a control arm) is exported by rounding its weights to nearest under the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor, nn

from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.format import E2M1, E8M0
from quantaudit.core.recipe import Execution, Recipe
from quantaudit.core.scheme import ExponentScale, PerGroup, Scheme
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.realization import Realization, apply_recipe, assign_rules, module_name
from quantaudit.engines.stored import StoredTensor, quantize_stack, restore, store
from quantaudit.model.linear import GroupedLinear
from quantaudit.model.lm import LanguageModel
from quantaudit.numerics import QuantizedTensor
from quantaudit.training.fake_quantize import FakeQuantizedGroupedLinear, TrainedStack, schemes_of
from quantaudit.training.learned_scales import LearnedScaleGroupedLinear
from quantaudit.training.optimizers import SCALE

_GROUP = 32


class Storage(StrEnum):
    """How a quantized stack lies in an exported checkpoint."""

    PACKED = "packed"
    MASTER = "bf16 master, to which the recipe is applied"
    DECODED = "decoded values in fp32"


class ExportCard(Frozen):
    """`export.json`: what an exported checkpoint holds.

    Attributes:
        recipe: Name of the recipe.
        recipe_digest: Its digest.
        arithmetic: Stack -> digest of the arithmetic of its scheme.
        storage: Stack -> how it lies in the files.
    """

    recipe: str
    recipe_digest: str
    arithmetic: dict[str, str]
    storage: dict[str, Storage]


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


def write_export(folder: Path, model: LanguageModel, recipe: Recipe) -> ExportCard:
    """Writes the trained model as a checkpoint in the Kimi K3 layout.

    Args:
        folder: Folder to create.
        model: Prepared and trained, or plain.
        recipe: Its recipe, with what calibration chose.

    Raises:
        InputError: If the folder is there already.
    """
    packed, learned = export_packed(model, recipe), _learned(model)
    storage = {name: _storage_of(held, is_learned=name in learned) for name, held in packed.items()}
    card = ExportCard(
        recipe=recipe.name,
        recipe_digest=recipe.digest(),
        arithmetic={name: held.scheme.arithmetic_digest for name, held in packed.items()},
        storage=storage,
    )
    plain = export_masters(model)
    values = ((path, _stored_value(path, p.detach(), packed, storage)) for path, p in plain.named_parameters())
    write_checkpoint(folder, model.config, values, scheme=None, shard_bytes=None)
    write_atomically(folder / "export.json", card.to_json().encode())
    return card


def _learned(model: LanguageModel) -> set[str]:
    return {name for name, module in _stacks(model) if isinstance(module, LearnedScaleGroupedLinear)}


def _storage_of(held: StoredTensor, *, is_learned: bool) -> Storage:
    if can_be_packed(held.scheme):
        return Storage.PACKED
    return Storage.DECODED if is_learned else Storage.MASTER


def can_be_packed(scheme: Scheme) -> bool:
    """Tells whether the layout of Kimi K3 has codes for a scheme."""
    is_power_of_two = isinstance(scheme.scale, ExponentScale) and scheme.scale.format == E8M0
    return scheme.element == E2M1 and scheme.granularity == PerGroup(size=_GROUP) and is_power_of_two


def _stored_value(
    path: str, value: Tensor, packed: dict[str, StoredTensor], storage: dict[str, Storage]
) -> Tensor | QuantizedTensor:
    """Returns what the file holds of a parameter."""
    name = module_name(path.removesuffix(".weight"))
    match storage.get(name):
        case Storage.PACKED:
            return restore(packed[name])
        case Storage.DECODED:
            return packed[name].decode(torch.float32)
    return value
