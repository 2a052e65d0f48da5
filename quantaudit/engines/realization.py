"""Realizations: hi as it is stored, and lo made from hi by a recipe or read from its own checkpoint.

lo made by a recipe shares every tensor it does not replace with hi, so both fit in memory together. A tensor that
is already stored in the recipe's scheme keeps its codes; another scheme on a stored tensor is double quantization.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Execution, Recipe, Rule
from quantaudit.core.scheme import ExponentScale, PerGroup, Scheme
from quantaudit.engines.quantized import QuantizedGroupedLinear, QuantizedLinear, QuantizedRouter, RoundedGroupedLinear
from quantaudit.engines.stored import StoredTensor, quantize_stack
from quantaudit.model.linear import GroupedLinear, Linear
from quantaudit.model.lm import LanguageModel
from quantaudit.model.moe import Router
from quantaudit.numerics import get_scheme

_MATMULS = (Linear, GroupedLinear, QuantizedLinear, QuantizedGroupedLinear)


@dataclass(frozen=True, slots=True, kw_only=True)
class Realization:
    """A runnable model.

    Attributes:
        model: Weights in the dtypes they are stored in.
        stored: Weights held in a scheme, by module name (see `module_name`); hi's are decoded in `model` too.
        activations: Names of input schemes, by module name.
        execution: How it is run.
        notes: Sentences every report must repeat.
    """

    model: LanguageModel
    stored: Mapping[str, StoredTensor]
    activations: Mapping[str, str]
    execution: Execution
    notes: tuple[str, ...] = ()


def module_name(path: str) -> str:
    """Returns the name rules match: `model.layers.3.block_sparse_moe.experts.w1` becomes `layers.3.experts.w1`."""
    return path.removeprefix("model.").replace(".block_sparse_moe.", ".")


def matmuls(model: LanguageModel) -> Iterator[tuple[str, nn.Module]]:
    """Yields every matrix product with weights as (module name, module), the routers (`layers.3.gate`) among them."""
    for path, module in model.named_modules():
        if isinstance(module, _MATMULS):
            yield module_name(path), module


def apply_recipe(hi: Realization, recipe: Recipe) -> Realization:
    """Builds lo.

    Raises:
        InputError: If a rule matches nothing or names an unknown scheme, a group does not divide a weight, a weight
            is not finite, or a stored weight would be quantized again without `requantize = true`.
    """
    assigned = assign_rules([name for name, _ in matmuls(hi.model)], recipe)
    stored: dict[str, StoredTensor] = {}
    activations: dict[str, str] = {}
    notes = list(recipe.notes)
    model = share_parameters(hi.model)
    kept = 0
    for path, module in list(model.named_modules()):
        name = module_name(path)
        rule = assigned.get(name)
        if rule is None or not isinstance(module, Linear | GroupedLinear):
            if name in hi.stored and isinstance(module, GroupedLinear):
                stored[name] = hi.stored[name]
                replace_module(model, path, QuantizedGroupedLinear(hi.stored[name], None))
            continue
        weight = _weight_of(name, module.weight.detach(), rule, hi.stored.get(name), recipe)
        if isinstance(weight, StoredTensor):
            stored[name] = weight
            kept += rule.weight is not None and weight is hi.stored.get(name)
        if rule.activation is not None:
            activations[name] = rule.activation
        activation = _activation_of(name, module.weight.shape[-1], rule)
        replace_module(model, path, _quantized(module, weight, activation))
    if kept:
        notes.append(
            f"{kept} weights are already stored in the recipe's scheme and keep their codes: their weight obstruction "
            "is zero by construction; no full-precision baseline exists for them."
        )
    if recipe.requantize and any(n in hi.stored and stored.get(n) is not hi.stored[n] for n in stored):
        notes.append(
            "Weights that were already quantized are quantized again (double quantization), as the recipe asks."
        )
    return Realization(
        model=model, stored=stored, activations=activations, execution=recipe.execution, notes=tuple(notes)
    )


def pass_through(hi: Realization) -> Realization:
    """Returns hi through the complete lo path with nothing quantized anew: the identity control.

    What hi holds packed stays packed and is decoded in every forward, as in lo.
    """
    model = share_parameters(hi.model)
    for path, module in list(model.named_modules()):
        if isinstance(module, Linear | GroupedLinear):
            held = hi.stored.get(module_name(path), module.weight.detach())
            replace_module(model, path, _quantized(module, held, None))
    return Realization(model=model, stored={}, activations={}, execution=hi.execution)


def round_experts(hi: Realization, scheme: Scheme) -> Realization:
    """Returns hi with its routed experts rounded to a scheme as they are used: a rung of the ladder of bit widths."""
    model = share_parameters(hi.model)
    for path, module in list(model.named_modules()):
        if isinstance(module, GroupedLinear):
            replace_module(model, path, RoundedGroupedLinear(module.weight.detach(), scheme))
    return Realization(model=model, stored={}, activations={}, execution=hi.execution)


def _quantized(
    module: Linear | GroupedLinear, weight: StoredTensor | Tensor, activation: Scheme | None
) -> QuantizedLinear | QuantizedGroupedLinear:
    """Returns what takes the module's place."""
    if isinstance(module, GroupedLinear):
        return QuantizedGroupedLinear(weight, activation)
    if isinstance(module, Router):
        return QuantizedRouter(weight, activation, module.e_score_correction_bias)
    return QuantizedLinear(weight, activation)


def assign_rules(names: list[str], recipe: Recipe) -> dict[str, Rule]:
    """Returns the first matching rule of every module.

    Raises:
        InputError: If a rule decides no module.
    """
    assigned = {name: rule for name in names if (rule := recipe.rule_for(name)) is not None}
    used = set(map(id, assigned.values()))
    for rule in recipe.rules:
        if id(rule) not in used:
            examples = ", ".join([n for n in names if "experts." in n][:2] or names[:2])
            raise InputError(
                f"recipe {recipe.name!r}: the rule for {rule.match!r} decides no module",
                expected=f"a pattern that matches a module no earlier rule took, such as {examples}",
                fix="correct the pattern or remove the rule",
            )
    return assigned


def share_parameters(model: LanguageModel) -> LanguageModel:
    """Returns a new module tree over the same tensors."""
    return copy.deepcopy(model, memo={id(p): p for p in model.parameters()})


def _weight_of(
    name: str, weight: Tensor, rule: Rule, held: StoredTensor | None, recipe: Recipe
) -> StoredTensor | Tensor:
    """Returns what the module holds under the rule."""
    if rule.weight is None:
        return weight if held is None else held
    scheme = get_scheme(rule.weight)
    if held is not None and is_same_storage(held.scheme, scheme):
        return held
    if held is not None and not recipe.requantize:
        raise InputError(
            f"{name} is stored in {held.scheme.name} and recipe {recipe.name!r} gives it {scheme.name}",
            expected="a weight that is not quantized yet, or the scheme it is stored in",
            fix="say `requantize = true` in the recipe if double quantization is meant",
        )
    if not bool(torch.isfinite(weight).all()):
        raise InputError(f"{name} holds NaN or infinity", expected="finite weights", fix="repair the checkpoint")
    _check_groups(f"{name} of shape {list(weight.shape)}", tuple(weight.shape), scheme)
    return quantize_stack(weight, scheme)


def _activation_of(name: str, width: int, rule: Rule) -> Scheme | None:
    """Returns the scheme of the module's input, checked against the width of a row."""
    if rule.activation is None:
        return None
    scheme = get_scheme(rule.activation)
    _check_groups(f"the input of {name}, {width} wide", (1, width), scheme)
    return scheme


def _check_groups(what: str, shape: tuple[int, ...], scheme: Scheme) -> None:
    size = scheme.granularity.size if isinstance(scheme.granularity, PerGroup) else 1
    if shape[-1] % size:
        raise InputError(
            f"{what}, in {scheme.name}",
            expected=f"a reduction dimension that is a multiple of the group size {size}",
            fix="choose a scheme whose groups divide it, or leave the module out of the rule",
        )


def is_same_storage(held: Scheme, wanted: Scheme) -> bool:
    """Tells whether two schemes decode alike: same elements, groups and scale format.

    A file does not say how its scales were chosen.
    """
    same_scale = type(held.scale) is type(wanted.scale) and (
        isinstance(held.scale, ExponentScale) or held.scale == wanted.scale
    )
    return held.element == wanted.element and held.granularity == wanted.granularity and same_scale


def replace_module(model: LanguageModel, path: str, module: nn.Module) -> None:
    """Puts a module where another was."""
    parent, _, attribute = path.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)


def weight_values(realization: Realization) -> Iterator[tuple[str, Tensor]]:
    """Yields (module name, weight) of every matrix product: fp32 where it is decoded, else as stored."""
    for name, module in matmuls(realization.model):
        yield name, _values(module)


def parameter_readers(realization: Realization) -> dict[str, Callable[[], Tensor]]:
    """Returns what reads the values of every parameter, by path, so that a model can be digested like a checkpoint."""
    readers: dict[str, Callable[[], Tensor]] = {
        f"{path}.weight": partial(_narrow_values, module)
        for path, module in realization.model.named_modules()
        if isinstance(module, _MATMULS)
    }
    return readers | {path: partial(_same, value) for path, value in other_values(realization)}


def _same(value: Tensor) -> Tensor:
    return value


def _narrow_values(module: nn.Module) -> Tensor:
    """Returns the values in bf16 where that is exact, so that equal values give equal digests."""
    values = _values(module)
    # Matrix by matrix: as a whole, the comparison would take as much memory again as the values.
    is_exact = all(torch.equal(part.to(torch.bfloat16).to(part.dtype), part) for part in values)
    return values.to(torch.bfloat16) if is_exact else values


def _values(module: nn.Module) -> Tensor:
    if isinstance(module, QuantizedLinear | QuantizedGroupedLinear):
        held = module.stored
        return held.decode(torch.float32) if isinstance(held, StoredTensor) else held
    assert isinstance(module, Linear | GroupedLinear)
    return module.weight.detach()


def other_values(realization: Realization) -> Iterator[tuple[str, Tensor]]:
    """Yields (parameter path, tensor) of everything that is not the weight of a matrix product."""
    weights = {path for path, module in realization.model.named_modules() if isinstance(module, Linear | GroupedLinear)}
    for path, parameter in realization.model.named_parameters():
        owner = path.removesuffix(".weight")
        if owner not in weights:
            yield path, parameter.detach()
