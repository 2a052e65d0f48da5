"""torchao's MX quantizers are the catalogue's, but for the groups that their offers name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
from torchao.quantization import quantize_
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

from quantaudit.backends import load_backend
from quantaudit.backends import torchao_departures as d
from quantaudit.backends.torchao_offers import OFFERS
from quantaudit.core.scheme import ExponentScale
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from tests.backends.comparison import DTYPE_NAMES, DTYPES, compare, grouped, row_of, structured
from tests.numerics.bits import all_bf16, assert_same_bits

TORCHAO = load_backend("torchao")
NAMES = [name for name, offer in OFFERS.items() if isinstance(get_scheme(offer.catalogue).scale, ExponentScale)]
LOGARITHMIC = [name for name in NAMES if d.LOGARITHM in OFFERS[name].departs]
SHIFTED = [name for name in NAMES if name not in LOGARITHMIC]
each_name = pytest.mark.parametrize("name", NAMES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)


def largest(name: str) -> float:
    return get_scheme(name).element.max


def is_least(x: Tensor, name: str) -> Tensor:
    """Says of each group that is not zero whether its scale is 2^-127."""
    scheme = get_scheme(name)
    return (quantize(x, scheme).scales.flatten() == 0) & grouped(x, scheme).ne(0).any(-1)


def is_just_above(x: Tensor, name: str) -> Tensor:
    """Says of each group whether its maximum is less than 22 ulps above the largest element times a power of two.

    A float32 log2 near 127 has a spacing of 2^-17: it loses what is below 2^-18, a factor of 1 + 2.6e-6, 22 ulps.
    """
    ratio = grouped(x, get_scheme(name)).abs().amax(-1).double() / largest(name)
    mantissa = torch.frexp(ratio).mantissa * 2
    return (mantissa > 1) & (mantissa < 1 + 22 * 2.0**-23)


@each_dtype
@each_name
def test_it_departs_only_where_the_offer_says(name: str, dtype: torch.dtype) -> None:
    x = structured(dtype)
    groups = grouped(x, get_scheme(name))
    stated = is_least(x, name) | ~groups.isfinite().all(-1)
    if name in LOGARITHMIC and dtype is torch.float32:
        stated |= is_just_above(x, name)
    parting = compare("torchao", name, x, get_scheme(name))
    assert not (parting.anywhere & ~stated).any()
    assert (~stated).sum() > 600


@each_name
def test_every_bf16_maximum_gets_the_catalogues_scale_codes_and_values(name: str) -> None:
    maxima = all_bf16()[:0x7F80].float()  # the non-negative finite ones
    x = (maxima.unsqueeze(1) * torch.cat([torch.ones(1), torch.rand(31) * 2 - 1])).bfloat16()
    parting = compare("torchao", name, x, get_scheme(name))
    assert not (parting.anywhere & ~is_least(x, name)).any()


@each_dtype
@pytest.mark.parametrize("name", SHIFTED)
def test_the_least_scale_halves(name: str, dtype: torch.dtype) -> None:
    x = row_of(4 * 2.0**-127, -2 * 2.0**-127, dtype=dtype)
    q = TORCHAO.quantize(x, name)
    assert q.scales.item() == 0
    assert_same_bits(TORCHAO.dequantize(q), x / 2)
    assert_same_bits(dequantize(quantize(x, get_scheme(name))), x)
    assert d.HALVED in OFFERS[name].departs


@each_dtype
@pytest.mark.parametrize("name", LOGARITHMIC)
def test_the_least_scale_does_not_scale(name: str, dtype: torch.dtype) -> None:
    x = row_of(4 * 2.0**-127, -2 * 2.0**-127, dtype=dtype)
    q = TORCHAO.quantize(x, name)
    assert q.scales.item() == 0
    assert not TORCHAO.dequantize(q).any()
    assert_same_bits(dequantize(quantize(x, get_scheme(name))), x)
    assert d.UNSCALED in OFFERS[name].departs


@pytest.mark.parametrize("name", LOGARITHMIC)
@pytest.mark.parametrize("exponent", [40, -40, 100])
def test_a_float_logarithm_misses_the_next_exponent(name: str, exponent: int) -> None:
    top = largest(name) * 2.0**exponent
    x = row_of(top * (1 + 2.0**-23))
    q = TORCHAO.quantize(x, name)
    assert q.scales.item() == 127 + exponent
    assert TORCHAO.dequantize(q)[0, 0] == top
    assert quantize(x, get_scheme(name)).scales.item() == 127 + exponent + 1


@each_dtype
@each_name
def test_an_infinity_stays_one_and_its_group_finite(name: str, dtype: torch.dtype) -> None:
    x = row_of(-math.inf, 1.0, dtype=dtype)
    q = TORCHAO.quantize(x, name)
    values = TORCHAO.dequantize(q)
    assert q.scales.item() != 255
    assert values[0, 0] == -math.inf and values[0, 1:].isfinite().all()
    assert dequantize(quantize(x, get_scheme(name))).isnan().all()
    assert d.MX_INFINITY in OFFERS[name].departs


@each_dtype
@each_name
def test_a_nan_leaves_codes_behind(name: str, dtype: torch.dtype) -> None:
    x = row_of(math.nan, -1.0, 1.0, dtype=dtype)
    q, ours = TORCHAO.quantize(x, name), quantize(x, get_scheme(name))
    assert q.scales.item() == ours.scales.item() == 255
    assert q.codes.any() and not ours.codes.any()
    assert TORCHAO.dequantize(q).isnan().all() and dequantize(ours).isnan().all()
    assert d.NAN_CODES in OFFERS[name].departs


@each_dtype
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("floor")])
def test_every_code_decodes_as_the_catalogues_at_every_scale(name: str, dtype: torch.dtype) -> None:
    scheme = get_scheme(name)
    codes = torch.arange(max(1 << scheme.element.bits, 32)) % (1 << scheme.element.bits)
    q = QuantizedTensor(
        codes=codes.to(torch.uint8).expand(256, -1).contiguous(),
        scales=torch.arange(256, dtype=torch.uint8).unsqueeze(1).expand(-1, len(codes) // 32).contiguous(),
        second_scales=None,
        offset=None,
        shape=(256, len(codes)),
        dtype=dtype,
        scheme=scheme,
    )
    assert_same_bits(TORCHAO.dequantize(q), dequantize(q))


def test_the_quantizer_of_the_configuration_is_this_one() -> None:
    linear = torch.nn.Linear(256, 64, bias=False, dtype=torch.bfloat16)
    config = MXDynamicActivationMXWeightConfig(
        activation_dtype=torch.float4_e2m1fn_x2,
        weight_dtype=torch.float4_e2m1fn_x2,
        kernel_preference=KernelPreference.EMULATED,
    )
    q = TORCHAO.quantize(linear.weight, "mxfp4-rceil")
    quantize_(linear, config)
    assert_same_bits(TORCHAO.dequantize(q), linear.weight.dequantize())
