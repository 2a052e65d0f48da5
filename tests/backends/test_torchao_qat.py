"""torchao's fake quantizers are their modules, and agree with the stored weights but for what is published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.qat import (
    MXFakeQuantizeConfig,
    MXFakeQuantizedLinear,
    NVFP4FakeQuantizeConfig,
    NVFP4FakeQuantizedLinear,
)
from torchao.prototype.qat.nvfp4 import _NVFP4QuantizedForwardFakeQuantizedBackward
from torchao.quantization import IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup, PerRow, PerTensor
from torchao.quantization.qat import (
    Float8FakeQuantizeConfig,
    Float8FakeQuantizer,
    IntxFakeQuantizeConfig,
    IntxFakeQuantizer,
    QATConfig,
)
from torchao.quantization.qat.fake_quantize_config import Int4WeightFakeQuantizeConfig
from torchao.quantization.qat.fake_quantizer import Int4WeightFakeQuantizer
from torchao.quantization.qat.linear import FakeQuantizedLinear

from quantaudit.backends import load_backend
from quantaudit.backends.torchao_mx import parameters
from quantaudit.backends.torchao_offers import OFFERS, QAT_OFFERS
from quantaudit.core.scheme import ExponentScale
from quantaudit.numerics import get_scheme
from tests.backends.comparison import DTYPE_NAMES, DTYPES, structured
from tests.backends.weights import assert_agrees, gaussian_weights
from tests.numerics.bits import assert_same_bits

TORCHAO, QAT = load_backend("torchao"), load_backend("torchao-qat")
INT4: torch.dtype = torch.int4  # type: ignore[attr-defined]
INT8 = torch.int8
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)
MX = [name for name, offer in QAT_OFFERS.items() if isinstance(get_scheme(offer.catalogue).scale, ExponentScale)]


def fake(x: Tensor, name: str) -> Tensor:
    return QAT.dequantize(QAT.quantize(x, name))


def real(x: Tensor, name: str) -> Tensor:
    return TORCHAO.dequantize(TORCHAO.quantize(x, name))


INTX = {
    "int4-g32": IntxFakeQuantizeConfig(INT4, PerGroup(32), scale_precision=None),
    "int4-g128": IntxFakeQuantizeConfig(INT4, PerGroup(128), scale_precision=None),
    "int4-g32-fp32-scale": IntxFakeQuantizeConfig(INT4, group_size=32),
    "int4-g128-fp32-scale": IntxFakeQuantizeConfig(INT4, group_size=128),
    "intx-int8-channel": IntxFakeQuantizeConfig(INT8, PerAxis(0), scale_precision=None),
    "intx-int8-g32": IntxFakeQuantizeConfig(INT8, PerGroup(32), scale_precision=None),
    "int8-channel": IntxFakeQuantizeConfig(INT8, "per_channel"),
    "int8-g32": IntxFakeQuantizeConfig(INT8, group_size=32),
}
FLOAT8 = {
    "fp8-tensor": Float8FakeQuantizeConfig(granularity=PerTensor()),
    "fp8-channel": Float8FakeQuantizeConfig(granularity=PerRow()),
}


@each_dtype
@pytest.mark.parametrize("name", INTX)
def test_integers_are_the_module(name: str, dtype: torch.dtype) -> None:
    x = structured(dtype)
    assert_same_bits(fake(x, name), IntxFakeQuantizer(INTX[name])(x))


@each_dtype
@pytest.mark.parametrize("name", FLOAT8)
def test_float8_is_the_module(name: str, dtype: torch.dtype) -> None:
    for x in structured(dtype).split(5):
        assert_same_bits(fake(x, name), Float8FakeQuantizer(FLOAT8[name])(x))


@each_dtype
@pytest.mark.parametrize("name", MX)
def test_mx_is_the_weight_that_the_module_multiplies_with(name: str, dtype: torch.dtype) -> None:
    x = structured(dtype)
    # Beside an infinity, 0 * inf would be NaN; and a product of bf16 matrices flushes subnormal numbers.
    x = x[((x.abs() < 2.0**100) & ((x.abs() > 2.0**-100) | (x == 0))).all(-1)]
    assert len(x) > 64
    element, size, mode = parameters(get_scheme(name))
    config = MXFakeQuantizeConfig(dtype=element, block_size=size, scaling_mode=mode)
    linear = torch.nn.Linear(x.shape[1], len(x), bias=False, dtype=dtype)
    linear.weight = torch.nn.Parameter(x)
    module = MXFakeQuantizedLinear.from_linear(linear, config, config)
    # Ones are exact in every format, and all but one term of each sum are zeros; a sum of zeros is +0.
    multiplied = module(torch.eye(x.shape[1], dtype=dtype)).T
    assert_same_bits(fake(x, name) + 0.0, multiplied + 0.0)


class Saved:
    """Stands for an autograd context: keeps what a forward pass saves."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.tensors = tensors


@each_dtype
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-single-level"])
def test_nvfp4_is_the_weight_that_the_module_saves(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(64, 256).to(dtype)
    config = NVFP4FakeQuantizeConfig(use_per_tensor_scale=name == "nvfp4")
    saved = Saved()
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)):  # the product needs another GPU
        _NVFP4QuantizedForwardFakeQuantizedBackward.forward(saved, x, x, None, config, config)
    weight = saved.tensors[1]
    assert isinstance(weight, NVFP4Tensor)
    assert_same_bits(fake(x, name), weight.dequantize())
    # And this is the function that the module applies.
    applied = NVFP4FakeQuantizedLinear.forward.__code__.co_names
    assert _NVFP4QuantizedForwardFakeQuantizedBackward.__name__ in applied


@each_dtype
@pytest.mark.parametrize("name", [name for name in QAT_OFFERS if name in OFFERS])
def test_equal_names_are_the_two_sides_of_one_training(name: str, dtype: torch.dtype) -> None:
    x = structured(dtype)
    q, other = QAT.quantize(x, name), TORCHAO.quantize(x, name)
    same = torch.ones(q.scales.shape, dtype=torch.bool)
    if OFFERS[name].catalogue.endswith("-eps"):
        same = ~(q.scales < 2.0**-23)
        assert not same.all()
    assert_same_bits(q.scales[same].float(), other.scales[same].float())
    if same.all():
        assert torch.equal(q.codes, other.codes)
        assert_same_bits(fake(x, name), real(x, name))


CONVERTED = {
    "int4-g32": IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerGroup(32)),
    "int4-g128": IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerGroup(128)),
    "intx-int8-channel": IntxWeightOnlyConfig(weight_dtype=INT8, granularity=PerAxis(0)),
    "intx-int8-g32": IntxWeightOnlyConfig(weight_dtype=INT8, granularity=PerGroup(32)),
}


@each_dtype
@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_prepared_is_what_is_converted(name: str, dtype: torch.dtype) -> None:
    x = gaussian_weights(512, 1024).to(dtype)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 512, bias=False, dtype=dtype))
    model[0].weight = torch.nn.Parameter(x)
    quantize_(model, QATConfig(CONVERTED[name], step="prepare"))
    linear = model[0]
    assert isinstance(linear, FakeQuantizedLinear) and linear.weight_fake_quantizer is not None
    prepared = linear.weight_fake_quantizer(linear.weight).detach()
    quantize_(model, QATConfig(CONVERTED[name], step="convert"))
    assert_same_bits(prepared, model[0].weight.dequantize())
    assert_same_bits(fake(x, name), prepared)


@pytest.mark.parametrize(("size", "published"), [(32, 0.0097), (128, 0.0059)])
def test_a_hand_made_configuration_parts_from_the_converted_one_as_published(size: int, published: float) -> None:
    x = gaussian_weights(512, 1024)
    assert_same_bits(fake(x, f"int4-g{size}-fp32-scale"), real(x, f"int4-g{size}"))
    x = x.bfloat16()
    assert_agrees(fake(x, f"int4-g{size}-fp32-scale") != real(x, f"int4-g{size}"), published, digits=4)


def decoded_as_stored(x: Tensor, size: int) -> Tensor:
    """Returns what `Int4Tensor` would decode, whose packing needs a GPU: scale and zero point in the weight's dtype."""
    groups = x.float().view(len(x), -1, size)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-6) / 15
    codes = ((groups - low) / scale).round().clamp(0, 15) - 8
    zero = low + scale * 8
    return (codes * scale.to(x.dtype).float() + zero.to(x.dtype).float()).view(x.shape).to(x.dtype)


def test_asymmetric_int4_keeps_fp32_scales_in_training_alone_as_published() -> None:
    module = Int4WeightFakeQuantizer(Int4WeightFakeQuantizeConfig(group_size=128, activation_dtype=torch.bfloat16))
    x = gaussian_weights(512, 1024)
    assert_same_bits(module(x), decoded_as_stored(x, 128))
    x = x.bfloat16()
    assert_agrees(module(x) != decoded_as_stored(x, 128), 0.326, digits=3)
