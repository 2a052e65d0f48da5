"""Learned step sizes (LSQ): the scale of a group is a parameter, not a function of the group's largest value.

With r = w / s and code c = round(clip(r, low, high)), the value is v = c s, and

    dv/dw = 1 where low <= r <= high, else 0
    dv/ds = c - r there, else low or high (c itself)

The gradient of s is divided by sqrt(group size * high), so that it moves at the pace of the weights. Scales start where
the scheme would measure them, so the first forward is round-to-nearest. What is learned is stored as it is: codes and
fp32 scales of the scheme's own formats decode as ever, and no file says how its scales were chosen. Power-of-two and
two-level scales are left out: a rounded scale cannot be learned by small steps.

Source: Esser et al., Learned Step Size Quantization (arXiv 1902.08153), equations 1 to 3 and section 2.2.
Legend: E experts, O out, I in, G groups of a row, M members of a group.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quantaudit.core.errors import InputError
from quantaudit.core.format import FP32, IntegerFormat
from quantaudit.core.recipe import Estimator, Recipe
from quantaudit.core.scheme import LinearScale, PerGroup, Scheme
from quantaudit.engines.realization import module_name, replace_module
from quantaudit.model.lm import LanguageModel
from quantaudit.numerics import QuantizedTensor, quantize
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.rounding import encode
from quantaudit.training.fake_quantize import FakeQuantizedGroupedLinear, TrainedStack, prepare


class LearnedScaleGroupedLinear(TrainedStack):
    """A `GroupedLinear` in training whose groups have learned scales.

    Attributes:
        weight: The master `[E, O, I]`.
        learned_scale: `[E, O, G]`, fp32.
        weight_scheme: Element format, groups and code range.
    """

    def __init__(self, weight: nn.Parameter, weight_scheme: Scheme, activation: Scheme | None) -> None:
        super().__init__(weight, activation, Estimator.PLAIN)
        self.weight_scheme = weight_scheme
        self.learned_scale = nn.Parameter(quantize(self.exported(), weight_scheme).scales.clone())

    def exported(self) -> Tensor:
        """Returns the master as an export holds it."""
        return self.weight.detach().to(torch.bfloat16)

    def codes(self) -> Tensor:
        """Returns the codes `[E, O, I]`, int8."""
        codes: Tensor = encode(self._ratios().flatten(-2), element_rule(self.weight_scheme))
        return codes

    def quantized_tensor(self) -> QuantizedTensor:
        """Returns codes and scales as they are stored."""
        return QuantizedTensor(
            codes=self.codes(),
            scales=self.learned_scale.detach().clone(),
            second_scales=None,
            offset=None,
            shape=tuple(self.weight.shape),
            dtype=torch.bfloat16,
            scheme=self.weight_scheme,
        )

    def _ratios(self) -> Tensor:
        """Returns w / s, `[E, O, G, M]`; a scale of zero is one of a group of zeros."""
        groups = self.exported().float().unflatten(-1, (self.learned_scale.shape[-1], -1))
        scale = self.learned_scale.detach().unsqueeze(-1)
        return torch.where(scale > 0, groups / scale, 0.0)

    def _quantize(self) -> Tensor:
        groups = torch.unflatten(self.codes().float(), -1, (self.learned_scale.shape[-1], -1))
        return torch.flatten(groups * self.learned_scale.detach().unsqueeze(-1), -2)

    def _differentiable(self, values: Tensor) -> Tensor:
        code_range = self.weight_scheme.code_range
        assert code_range is not None, "integers have one"
        through: Tensor = _LearnedStep.apply(  # type: ignore[no-untyped-call]
            self.weight, self.learned_scale, values, self._ratios(), float(code_range.low), float(code_range.high)
        )
        return through


class _LearnedStep(torch.autograd.Function):
    """Hands out values, and gives master and scales their gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        master: Tensor,
        scale_EOG: Tensor,
        values_EOI: Tensor,
        ratio_EOGM: Tensor,
        low: float,
        high: float,
    ) -> Tensor:
        """Returns `values_EOI` under a name of its own."""
        ctx.save_for_backward(scale_EOG, values_EOI, ratio_EOGM)
        ctx.dtype, ctx.low, ctx.high = master.dtype, low, high  # type: ignore[attr-defined]
        return values_EOI.view_as(values_EOI)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        """Returns the gradients of the master and of the scales."""
        scale_EOG, values_EOI, ratio_EOGM = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_EOGM = grads[0].unflatten(-1, ratio_EOGM.shape[-2:])
        is_inside = (ratio_EOGM >= ctx.low) & (ratio_EOGM <= ctx.high)  # type: ignore[attr-defined]
        scale = scale_EOG.unsqueeze(-1)
        code_EOGM = torch.where(scale > 0, values_EOI.view_as(ratio_EOGM) / scale, 0.0)
        slope = torch.where(is_inside, code_EOGM - ratio_EOGM, code_EOGM)
        pace = 1.0 / math.sqrt(ratio_EOGM.shape[-1] * ctx.high)  # type: ignore[attr-defined]
        to_master = (grad_EOGM * is_inside).flatten(-2).to(ctx.dtype)  # type: ignore[attr-defined]
        return to_master, (grad_EOGM * slope).sum(-1) * pace, None, None, None, None


def prepare_learned(model: LanguageModel, recipe: Recipe) -> LanguageModel:
    """Replaces the expert stacks that the recipe's rules match by stacks with learned scales, in place.

    Raises:
        InputError: As `prepare`, and if a scheme's scales cannot be learned.
    """
    prepare(model, recipe)
    for path, module in list(model.named_modules()):
        if isinstance(module, FakeQuantizedGroupedLinear) and module.weight_scheme is not None:
            _check_learnable(module_name(path), module.weight_scheme)
            learned = LearnedScaleGroupedLinear(module.weight, module.weight_scheme, module.activation)
            replace_module(model, path, learned)
    return model


def _check_learnable(name: str, scheme: Scheme) -> None:
    rule = scheme.scale
    is_plain = isinstance(rule, LinearScale) and rule.second_level is None and rule.format == FP32
    if not (is_plain and isinstance(scheme.granularity, PerGroup) and isinstance(scheme.element, IntegerFormat)):
        raise InputError(
            f"learned scales of {name} in {scheme.name}",
            expected="an integer scheme with one fp32 scale a group, such as int3-g32",
            fix="choose such a scheme, or leave learns_scales out",
        )
