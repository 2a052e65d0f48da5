"""Fake quantization for training: the forward sees quantized values, the backward sees the identity.

    forward    y = decode(quantize(x))                  the arithmetic of the scheme, bit for bit
    backward   dL/dx = dL/dy                            plain straight-through
               dL/dx = dL/dy where x is not clipped     masked straight-through

A value is clipped where it lies beyond the largest value that its group's scale can reach. Scales are functions of the
group, and their own gradient is left out in both.

Masters stay in the module under the name they always had, so optimizers, states and exports do not notice. A weight is
quantized once for all micro batches of an optimizer step, and every one of them adds its gradient to the master. Served
checkpoints are made from bf16 exports, so a master goes through bf16 on its way to its codes unless told otherwise:
fp32 masters quantized directly are another function of the master.

Legend: N rows, E experts, O out, I in, S stack, G groups of a matrix, M members of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from quantaudit.core.errors import InputError
from quantaudit.core.format import FloatFormat
from quantaudit.core.recipe import Estimator as Estimator
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.scheme import Arithmetic, LinearScale, PerGroup, Scheme
from quantaudit.engines.realization import assign_rules, matmuls, module_name, replace_module
from quantaudit.model.linear import GroupedLinear, grouped_matmul
from quantaudit.model.lm import LanguageModel
from quantaudit.numerics import QuantizedTensor, dequantize, fused_fake_quantize, get_scheme, quantize
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.ladder import element_rule, rungs
from quantaudit.numerics.reference import decode_scales

_SLACK = 1 - 2.0**-22  # two roundings of fp32: that of the scale, and that of the product here


def fake_quantize_through(x: Tensor, scheme: Scheme, estimator: Estimator = Estimator.PLAIN) -> Tensor:
    """Returns `fake_quantize(x, scheme)`, bit for bit, with a gradient.

    Args:
        x: [..., R, C] fp32 or bf16.
        scheme: Any scheme.
        estimator: The gradient.

    Raises:
        InputError: As `fused_fake_quantize`.
    """
    fixed = x.detach()
    values = fused_fake_quantize(fixed, scheme)
    keep = None if estimator is Estimator.PLAIN else is_in_range(fixed, scheme)
    return straight_through(x, values, keep)


def straight_through(master: Tensor, values: Tensor, keep: Tensor | None) -> Tensor:
    """Returns `values`, whose gradient goes to `master`, where `keep` says so.

    Args:
        master: Any shape, any float dtype.
        values: The same shape; no gradient of its own.
        keep: bool of the same shape; everywhere when `None`.
    """
    through: Tensor = _StraightThrough.apply(master, values, keep)  # type: ignore[no-untyped-call]
    return through


class _StraightThrough(torch.autograd.Function):
    """Replaces values in the forward and passes the gradient on in the backward."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, master: Tensor, values: Tensor, keep: Tensor | None
    ) -> Tensor:
        """Returns `values` under a name of its own."""
        ctx.dtype, ctx.keep = master.dtype, keep  # type: ignore[attr-defined]
        return values.view_as(values)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Returns the gradient of the master."""
        (grad,) = grads
        keep: Tensor | None = ctx.keep  # type: ignore[attr-defined]
        kept = grad if keep is None else grad * keep
        return kept.to(ctx.dtype), None, None  # type: ignore[attr-defined]


@torch.no_grad()
def is_in_range(x: Tensor, scheme: Scheme) -> Tensor:
    """Tells, value by value, whether x lies within what its group's scale can reach; bool, the shape of `x`.

    Values of a group without a usable scale (NaN) count as in range, and so do values that are beyond by no more than
    the rounding of the scale: absmax / 3 in fp32, times 3, may fall short of absmax.
    """
    quantized = quantize(x, scheme)
    cut = plan(tuple(x.shape), scheme.granularity)
    scale_SG1 = decode_scales(quantized).unsqueeze(-1)
    ends = [scale_SG1 * end for end in _ends(scheme)]  # a negative scale swaps them
    groups_SGM = to_groups(x.float(), cut) * _SLACK
    outside = (groups_SGM < torch.minimum(*ends)) | (groups_SGM > torch.maximum(*ends))
    return from_groups(~outside, cut, tuple(x.shape))


@lru_cache(maxsize=64)
def _ends(scheme: Scheme) -> tuple[float, float]:
    """Returns the smallest and the largest ratio that the elements represent."""
    if isinstance(scheme.element, FloatFormat):
        return -scheme.element.max, scheme.element.max
    ladder = rungs(element_rule(scheme))
    return float(ladder[0].value), float(ladder[-1].value)


class TrainedStack(nn.Module, ABC):
    """A stack of experts that trains under quantization: a master, and its values of this optimizer step."""

    def __init__(self, weight: nn.Parameter, activation: Scheme | None, estimator: Estimator) -> None:
        super().__init__()
        self.weight = weight
        self.activation = activation
        self.estimator = estimator
        self._values: Tensor | None = None

    def quantized(self) -> Tensor:
        """Returns the values `[E, O, I]` of this optimizer step, fp32, computed once until `forget`; no gradient."""
        if self._values is None:
            self._values = self._quantize()
        return self._values

    def forget(self) -> None:
        """Drops the values of this step: the master has changed."""
        self._values = None

    def forward(self, x_NI: Tensor, counts_E: list[int]) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`; rows are sorted by expert."""
        if self.activation is not None and len(x_NI):
            # Every row is a matrix of its own, as in serving.
            x_NI = fake_quantize_through(x_NI.unsqueeze(1), self.activation, self.estimator).squeeze(1)
        return grouped_matmul(x_NI, self._differentiable(self.quantized()), counts_E)

    @abstractmethod
    def _quantize(self) -> Tensor: ...

    @abstractmethod
    def _differentiable(self, values: Tensor) -> Tensor: ...


class FakeQuantizedGroupedLinear(TrainedStack):
    """A `GroupedLinear` in training: fake-quantized weight, input, or both.

    Attributes:
        weight: The master `[E, O, I]`, fp32 or bf16.
        weight_scheme: Arithmetic of the weight; `None` leaves it.
        activation: Arithmetic of the rows; `None` leaves them.
        exports_bf16: Whether the master is rounded to bf16 before it is quantized, as its export is.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        weight_scheme: Scheme | None,
        activation: Scheme | None,
        *,
        estimator: Estimator = Estimator.PLAIN,
        exports_bf16: bool = True,
    ) -> None:
        super().__init__(weight, activation, estimator)
        self.weight_scheme = weight_scheme
        self.exports_bf16 = exports_bf16
        self._keep: Tensor | None = None

    def exported(self) -> Tensor:
        """Returns the master as an export holds it: what is quantized."""
        master = self.weight.detach()
        return master.to(torch.bfloat16) if self.exports_bf16 else master

    def _quantize(self) -> Tensor:
        exported, scheme = self.exported(), self.weight_scheme
        if scheme is None:
            self._keep = None
            return exported.float()
        self._keep = is_in_range(exported, scheme) if self.estimator is Estimator.MASKED else None
        if exported.dtype is not torch.float32 and _sees_the_dtype(scheme):
            return dequantize(quantize(exported, scheme), torch.float32)
        return fused_fake_quantize(exported.float().contiguous(), scheme)

    def _differentiable(self, values: Tensor) -> Tensor:
        return straight_through(self.weight, values, self._keep)


def _sees_the_dtype(scheme: Scheme) -> bool:
    """Tells whether the arithmetic is that of the tensor's own dtype, so that widening first changes the result."""
    rules = (scheme.arithmetic, scheme.scale.arithmetic if isinstance(scheme.scale, LinearScale) else None)
    return Arithmetic.INPUT in rules


def prepare(
    model: LanguageModel, recipe: Recipe, *, estimator: Estimator = Estimator.PLAIN, exports_bf16: bool = True
) -> LanguageModel:
    """Replaces the expert stacks that the recipe's rules match, in place; returns the model.

    Args:
        model: Its parameters become the masters; they keep their names.
        recipe: First matching rule wins, as when the recipe is applied to a checkpoint.
        estimator: The gradient.
        exports_bf16: Whether masters are exported in bf16.

    Raises:
        InputError: If a rule decides no module or a module that is no expert stack, or a group does not divide a row.
    """
    assigned = assign_rules([name for name, _ in matmuls(model)], recipe)
    for path, name, module in expert_modules(model):
        rule = assigned.pop(name, None)
        if rule is not None:
            weight, activation = schemes_of(rule, name, module.weight.shape[-1])
            trained = FakeQuantizedGroupedLinear(
                module.weight, weight, activation, estimator=estimator, exports_bf16=exports_bf16
            )
            replace_module(model, path, trained)
    for name, rule in assigned.items():
        raise InputError(
            f"recipe {recipe.name!r}: the rule for {rule.match!r} decides {name}",
            expected="only routed experts (`layers.*.experts.w[123]`) in a recipe that trains",
            fix="leave the module out of the rule",
        )
    return model


def expert_modules(model: LanguageModel) -> Iterator[tuple[str, str, GroupedLinear]]:
    """Yields (path, module name, stack) of every routed-expert stack that is not replaced yet."""
    for path, module in list(model.named_modules()):
        if isinstance(module, GroupedLinear):
            yield path, module_name(path), module


def schemes_of(rule: Rule, name: str, width: int) -> tuple[Scheme | None, Scheme | None]:
    """Returns the schemes of weight and input that a rule gives to a module whose rows are `width` wide.

    Raises:
        InputError: If a scheme is unknown, or its groups do not divide a row.
    """
    weight = None if rule.weight is None else get_scheme(rule.weight)
    activation = None if rule.activation is None else get_scheme(rule.activation)
    for scheme in (weight, activation):
        if scheme is not None and isinstance(scheme.granularity, PerGroup) and width % scheme.granularity.size:
            raise InputError(
                f"rows of {name}, {width} wide, in {scheme.name}",
                expected=f"a width that is a multiple of the group size {scheme.granularity.size}",
                fix="choose a scheme whose groups divide it, or leave the module out of the rule",
            )
    return weight, activation


def quantized_layers(model: LanguageModel) -> dict[str, FakeQuantizedGroupedLinear]:
    """Returns the stacks that train under fake quantization, by module name (`layers.3.experts.w1`)."""
    return {
        module_name(path): module
        for path, module in model.named_modules()
        if isinstance(module, FakeQuantizedGroupedLinear)
    }


def quantize_master(module: FakeQuantizedGroupedLinear) -> QuantizedTensor | None:
    """Returns codes and scales of the module's export; `None` where its weight has no scheme."""
    scheme = module.weight_scheme
    return None if scheme is None else quantize(module.exported(), scheme)


def forget_weights(model: nn.Module) -> None:
    """Drops every stack's values of this step; to be called after each optimizer step."""
    for module in model.modules():
        if isinstance(module, TrainedStack):
            module.forget()
