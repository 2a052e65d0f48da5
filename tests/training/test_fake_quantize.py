"""Fake quantization has the forward of the scheme and the backward of the identity, once a step."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Estimator, Recipe, Rule
from quantaudit.engines.realization import Realization, apply_recipe
from quantaudit.model.linear import GroupedLinear
from quantaudit.model.packed import pack
from quantaudit.numerics import fake_quantize, get_scheme, quantize
from quantaudit.training.fake_quantize import (
    FakeQuantizedGroupedLinear,
    fake_quantize_through,
    forget_weights,
    is_in_range,
    prepare,
    quantized_layers,
)
from tests.engines.small import draw_sequences, experts_in
from tests.training.toy import toy_hi, toy_model

SCHEMES = (
    "mxfp4-even",
    "mxfp4-floor",
    "mxfp8-e4m3-even",
    "nvfp4",
    "int3-g32",
    "int4-g32-div8",
    "fp8-block128",
    "nf4-b64",
)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("estimator", Estimator)
def test_the_forward_is_the_scheme_bit_for_bit(name: str, estimator: Estimator) -> None:
    x = torch.randn(3, 4, 64) * torch.logspace(-3, 3, 4)[:, None]
    assert torch.equal(fake_quantize_through(x, get_scheme(name), estimator), fake_quantize(x, get_scheme(name)))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_plain_gradient_is_that_of_the_identity(name: str) -> None:
    x = torch.randn(2, 4, 64, requires_grad=True)
    weight = torch.randn(2, 4, 64)
    (fake_quantize_through(x, get_scheme(name)) * weight).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weight)


def test_the_masked_gradient_is_zero_exactly_where_a_value_was_clipped() -> None:
    # floor: 7.9 has exponent 2 like 6, so the scale is 1 and everything above 6 is clipped
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([7.9, -6.1, 6.0, 3.0])
    x.requires_grad_()
    fake_quantize_through(x, get_scheme("mxfp4-floor"), Estimator.MASKED).sum().backward()
    assert x.grad is not None
    assert x.grad[0, :4].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert bool((x.grad[0, 4:] == 1).all())


def test_an_asymmetric_range_is_clipped_at_both_of_its_ends() -> None:
    # absmax / 7.5 with codes -8 to 7: the scale is 1, so 7.5 is beyond the range and -7.5 within
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([7.5, -7.5, 7.0])
    assert is_in_range(x, get_scheme("int4-g32-div7.5"))[0, :3].tolist() == [False, True, True]


def test_a_negative_scale_swaps_the_ends() -> None:
    # signed absmax / -8: the scale is -1 for +8, so the range is [-7, 8]
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([8.0, -7.5, -7.0])
    assert is_in_range(x, get_scheme("gguf-q4_0"))[0, :3].tolist() == [True, False, True]


@pytest.mark.parametrize(
    "name", ["mxfp4-rceil", "mxfp8-e4m3-rceil", "mxfp4-ceil", "int8-channel", "int3-g32", "int4-g32-div7"]
)
def test_rules_that_round_the_scale_up_never_clip(name: str) -> None:
    assert bool(is_in_range(torch.randn(8, 64), get_scheme(name)).all())


def stack(
    scheme: str | None, *, exports_bf16: bool = True, masters: torch.dtype = torch.float32
) -> FakeQuantizedGroupedLinear:
    """Returns a stack of three experts."""
    weight = torch.nn.Parameter(torch.randn(3, 8, 32).to(masters))
    return FakeQuantizedGroupedLinear(
        weight, None if scheme is None else get_scheme(scheme), None, exports_bf16=exports_bf16
    )


@pytest.mark.parametrize("scheme", ["mxfp4-even", "int4-g32-div7.5", "nvfp4"])
def test_weights_are_quantized_from_their_bf16_export(scheme: str) -> None:
    module = stack(scheme)
    exported = module.weight.detach().to(torch.bfloat16)
    assert torch.equal(module.quantized(), fake_quantize(exported.float(), get_scheme(scheme)))
    direct = stack(scheme, exports_bf16=False)
    assert torch.equal(direct.quantized(), fake_quantize(direct.weight.detach(), get_scheme(scheme)))


def test_a_bf16_master_is_its_own_export() -> None:
    module = stack("int3-g32", masters=torch.bfloat16)
    assert torch.equal(module.quantized(), fake_quantize(module.weight.detach().float(), get_scheme("int3-g32")))
    module(torch.randn(4, 32), [2, 1, 1]).sum().backward()
    assert module.weight.grad is not None and module.weight.grad.dtype is torch.bfloat16


def test_a_weight_is_quantized_once_a_step_and_every_micro_batch_reaches_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = stack("int3-g32")
    calls: list[int] = []
    quantize_once = FakeQuantizedGroupedLinear._quantize

    def counted(self: FakeQuantizedGroupedLinear) -> torch.Tensor:
        calls.append(1)
        return quantize_once(self)

    monkeypatch.setattr(FakeQuantizedGroupedLinear, "_quantize", counted)
    batches = [torch.randn(6, 32), torch.randn(6, 32)]
    grads: list[torch.Tensor] = []
    for x in batches:
        module.weight.grad = None
        module(x, [2, 2, 2]).square().sum().backward()
        assert isinstance(module.weight.grad, torch.Tensor)
        grads.append(module.weight.grad)
    module.weight.grad = None
    for x in batches:
        module(x, [2, 2, 2]).square().sum().backward()
    assert calls == [1]
    assert module.weight.grad is not None and torch.equal(module.weight.grad, grads[0] + grads[1])
    module.forget()
    module.quantized()
    assert calls == [1, 1]


def test_values_stay_until_they_are_forgotten() -> None:
    model = prepare(toy_model(), experts_in("int3-g32"))
    layer = quantized_layers(model)["layers.3.experts.w2"]
    before = layer.quantized()
    with torch.no_grad():
        layer.weight.mul_(2.0)
    assert layer.quantized() is before
    forget_weights(model)
    assert torch.equal(layer.quantized(), 2 * before)


@pytest.mark.parametrize(
    "recipe", [experts_in("mxfp4-even", "mxfp8-e4m3-even"), experts_in("int3-g32"), experts_in(None, "mxfp8-e4m3-even")]
)
def test_a_prepared_model_computes_what_the_recipe_serves(recipe: Recipe) -> None:
    hi = toy_hi()
    served = apply_recipe(hi, recipe).model
    batch = pack(draw_sequences(7, 19), torch.device("cpu"))
    with torch.no_grad():
        wanted = served(batch.tokens_N, batch.segments)
        trained = prepare(toy_model(), recipe)(batch.tokens_N, batch.segments)
    assert torch.equal(trained, wanted)


def test_the_masters_keep_their_names_and_are_the_same_parameters() -> None:
    model = toy_model()
    before = dict(model.named_parameters())
    prepare(model, experts_in("int3-g32"))
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_a_rule_for_some_stacks_leaves_the_others_alone() -> None:
    model = prepare(toy_model(), Recipe(name="t", rules=(Rule(match="layers.1.experts.w1", weight="int3-g32"),)))
    assert list(quantized_layers(model)) == ["layers.1.experts.w1"]
    assert sum(isinstance(m, GroupedLinear) for m in model.modules()) == 8


def test_rules_that_cannot_be_trained_are_refused() -> None:
    router = Recipe(name="t", rules=(Rule(match="layers.*.gate", weight="int4-g32-div7"),))
    with pytest.raises(InputError, match=r"decides layers\.1\.gate; expected only routed experts"):
        prepare(toy_model(), router)
    with pytest.raises(InputError, match="decides no module"):
        prepare(toy_model(), Recipe(name="t", rules=(Rule(match="nothing", weight="int3-g32"),)))
    with pytest.raises(InputError, match="multiple of the group size 128"):
        prepare(toy_model(), experts_in("int4-g128-div7"))


def test_quantized_values_are_what_packing_the_export_decodes_to() -> None:
    hi = toy_hi()
    assert isinstance(hi, Realization)
    model = prepare(toy_model(), experts_in("mxfp4-even"))
    for module in quantized_layers(model).values():
        packed = quantize(module.exported(), get_scheme("mxfp4-even"))
        assert torch.equal(module.quantized(), fake_quantize(module.exported().float(), packed.scheme))
