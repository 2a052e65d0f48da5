"""Learned scales start as round-to-nearest, have the gradients of the paper, and are stored as they are."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.engines.stored import store
from quantaudit.numerics import dequantize, fake_quantize, get_scheme
from quantaudit.training.learned_scales import LearnedScaleGroupedLinear, prepare_learned
from tests.engines.small import experts_in
from tests.training.toy import toy_model


def stack(scheme: str = "int3-g32") -> LearnedScaleGroupedLinear:
    """Returns a stack of three experts whose master is on the grid of bf16."""
    weight = torch.nn.Parameter(torch.randn(3, 8, 64).to(torch.bfloat16).float())
    return LearnedScaleGroupedLinear(weight, get_scheme(scheme), None)


@pytest.mark.parametrize("scheme", ["int3-g32", "int2-g32", "int4-g32-div7.5"])
def test_the_first_forward_is_round_to_nearest(scheme: str) -> None:
    module = stack(scheme)
    assert torch.equal(module.quantized(), fake_quantize(module.weight.detach(), get_scheme(scheme)))


def test_what_is_stored_decodes_to_what_was_trained() -> None:
    module = stack()
    with torch.no_grad():
        module.learned_scale.mul_(0.83)
    module.forget()
    held = module.quantized_tensor()
    assert torch.equal(dequantize(held, torch.float32), module.quantized())
    assert torch.equal(store(held).decode(torch.float32), module.quantized())
    assert int(held.codes.abs().max()) == 3, "smaller scales clip"


def test_the_gradients_are_those_of_the_paper() -> None:
    module = stack()
    with torch.no_grad():
        module.learned_scale.mul_(0.7)  # so that some values are clipped
    scale = module.learned_scale.detach().unsqueeze(-1)
    ratio = module.weight.detach().unflatten(-1, (2, 32)) / scale
    sent = torch.randn(3, 8, 64)
    (module._differentiable(module.quantized()) * sent).sum().backward()
    inside = ratio.abs() <= 3
    code = ratio.round().clamp(-3, 3)
    slope = torch.where(inside, code - ratio, code)
    wanted = (sent.unflatten(-1, (2, 32)) * slope).sum(-1) / math.sqrt(32 * 3)
    assert module.weight.grad is not None and module.learned_scale.grad is not None
    assert torch.equal(module.weight.grad, sent * inside.flatten(-2))
    assert bool(inside.any()) and not bool(inside.all())
    # the code is got back as value / scale: within two roundings of 3, in a sum of 32 terms of order one
    assert float((module.learned_scale.grad - wanted).abs().max()) <= 32 * 4 * 3 * 2.0**-24


def test_a_step_along_the_gradient_lowers_the_error() -> None:
    module = stack("int2-g32")
    target = module.weight.detach().clone()

    def error() -> torch.Tensor:
        module.forget()
        return (module._differentiable(module.quantized()) - target).square().sum()

    first = error()
    first.backward()
    assert module.learned_scale.grad is not None
    with torch.no_grad():
        module.learned_scale.sub_(1e-3 * module.learned_scale.grad)
    assert float(error().detach()) < float(first.detach())


def test_a_group_of_zeros_stays_zero_and_finite() -> None:
    module = LearnedScaleGroupedLinear(torch.nn.Parameter(torch.zeros(1, 1, 32)), get_scheme("int3-g32"), None)
    module._differentiable(module.quantized()).sum().backward()
    assert module.learned_scale.grad is not None
    assert bool(torch.isfinite(module.learned_scale.grad).all()) and not bool(module.quantized().any())


@pytest.mark.parametrize("scheme", ["mxfp4-even", "nvfp4", "fp8-block128", "nf4-b64-double"])
def test_scales_that_cannot_be_learned_are_refused(scheme: str) -> None:
    with pytest.raises(InputError, match=r"learned scales of layers\.1\.experts\.w1"):
        prepare_learned(toy_model(), experts_in(scheme))


def test_scales_are_parameters_beside_the_masters() -> None:
    model = prepare_learned(toy_model(), experts_in("int3-g32"))
    names = [name for name, _ in model.named_parameters() if name.endswith("learned_scale")]
    assert len(names) == 9
    assert names[0] == "model.layers.1.block_sparse_moe.experts.w1.learned_scale"
