"""torchao's integer quantizers, stored and fake, are the schemes that they name but for what their offers say."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor

from quantaudit.backends import load_backend
from quantaudit.backends import torchao_departures as d
from quantaudit.backends.protocol import Offer
from quantaudit.backends.torchao_offers import OFFERS, QAT_OFFERS
from quantaudit.core.format import INT8, FormatKind
from quantaudit.core.scheme import Arithmetic, Division, LinearScale, Scheme
from quantaudit.core.scheme import PerGroup as ByGroup
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from quantaudit.numerics.reference import decode_scales
from tests.backends.comparison import DTYPE_NAMES, DTYPES, compare, grouped, row_of, structured
from tests.numerics.bits import assert_same_bits

TORCHAO = load_backend("torchao")
OFFERED = [
    (backend, offer)
    for backend, offers in (("torchao", OFFERS), ("torchao-qat", QAT_OFFERS))
    for offer in offers.values()
    if get_scheme(offer.catalogue).element.kind is FormatKind.INTEGER
]


def where(holds: Callable[[Scheme], bool]) -> pytest.MarkDecorator:
    """Parametrizes over the offers whose scheme says all of what they compute in finite groups, if this holds of it."""
    return _each([(b, o) for b, o in OFFERED if d.TWO_SIDED not in o.departs and holds(get_scheme(o.catalogue))])


def _each(chosen: list[tuple[str, Offer]]) -> pytest.MarkDecorator:
    assert chosen
    return pytest.mark.parametrize(("backend", "offer"), chosen, ids=[f"{b}:{o.name}" for b, o in chosen])


def has_floor(floor: float) -> Callable[[Scheme], bool]:
    return lambda scheme: isinstance(scheme.scale, LinearScale) and scheme.scale.scale_floor == floor


each_offer = where(lambda scheme: True)
each_two_sided = _each([(b, o) for b, o in OFFERED if d.TWO_SIDED in o.departs])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)


def run(backend: str, offer: Offer, x: Tensor) -> QuantizedTensor:
    return load_backend(backend).quantize(x, offer.name)


def divided(scheme: Scheme) -> Scheme:
    return scheme.model_copy(update={"division": Division.DIVIDE})


@each_dtype
@each_offer
def test_the_sentences_leave_nothing_unsaid(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    x, scheme = structured(dtype), get_scheme(offer.catalogue)
    has_infinity = grouped(x, scheme).isinf().any(-1)
    parting = compare(backend, offer.name, x, scheme)
    assert torch.equal(parting.scales, has_infinity & ~grouped(x, scheme).isnan().any(-1))
    assert not (parting.codes | parting.values).any()


@each_offer
def test_an_infinity_makes_the_scale_infinite_and_the_values_nan(backend: str, offer: Offer) -> None:
    x = row_of(-math.inf, 1.0, size=128)
    q = run(backend, offer, x)
    assert q.scales.flatten()[0] == math.inf and not q.codes.any()
    assert load_backend(backend).dequantize(q)[0, :32].isnan().all()
    ours = quantize(x, get_scheme(offer.catalogue))
    assert ours.scales.flatten()[0].isnan() and dequantize(ours)[0, :32].isnan().all()


@each_offer
def test_the_reciprocal_moves_only_values_next_to_a_boundary(backend: str, offer: Offer) -> None:
    x = torch.randn(400, 256)
    q, scheme = run(backend, offer, x), divided(get_scheme(offer.catalogue))
    ours = quantize(x, scheme)
    assert_same_bits(q.scales, ours.scales)
    moved = q.codes != ours.codes
    assert moved.any() and (q.codes - ours.codes).abs().max() == 1
    # Reciprocal and product are rounded once each, so the ratio, at most 128, is off by at most 2 * 2^-24 of itself.
    ratio = grouped(x, scheme).double() / decode_scales(ours).view(-1, 1).double()
    distance = (ratio.abs().frac() - 0.5).abs().view_as(moved)
    assert distance[moved].max() <= 128 * 2 * 2.0**-24


def test_the_negative_maximum_is_on_the_boundary() -> None:
    x = row_of(-2.6133224964141846)
    assert TORCHAO.quantize(x, "int4-g32").codes[0, 0] == -7
    assert quantize(x, get_scheme("int4-g32-div7.5")).codes[0, 0] == -8


@where(lambda scheme: scheme.arithmetic is Arithmetic.INPUT)
def test_bf16_rounds_the_scale_and_the_product(backend: str, offer: Offer) -> None:
    x = torch.randn(64, 256).bfloat16()
    q, scheme = run(backend, offer, x), get_scheme(offer.catalogue)
    assert_same_bits(q.scales, q.scales.bfloat16())
    in_fp32 = quantize(x, scheme.model_copy(update={"arithmetic": Arithmetic.FLOAT32}))
    assert_same_bits(q.scales, in_fp32.scales)
    assert (q.codes != in_fp32.codes).any()


@where(lambda scheme: scheme.arithmetic is Arithmetic.FLOAT32)
def test_bf16_rounds_the_scale_alone(backend: str, offer: Offer) -> None:
    x = torch.randn(64, 256).bfloat16()
    q, scheme = run(backend, offer, x), get_scheme(offer.catalogue)
    rule = scheme.scale.model_copy(update={"arithmetic": Arithmetic.FLOAT32})
    in_fp32 = quantize(x, scheme.model_copy(update={"scale": rule}))
    assert_same_bits(q.scales, in_fp32.scales.bfloat16())
    assert (q.scales != in_fp32.scales).any()
    in_bf16 = quantize(x, scheme.model_copy(update={"arithmetic": Arithmetic.INPUT}))
    assert (q.codes != in_bf16.codes).any()


@each_dtype
@where(has_floor(2.0**-126))
def test_the_least_scale_is_the_smallest_normal_number(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    x = torch.zeros(2, 128)
    x[1, 0] = 2.0**-128
    q = run(backend, offer, x.to(dtype))
    assert (q.scales == 2.0**-126).all() and not q.codes.any()
    assert quantize(x.to(dtype), get_scheme("int8-channel")).scales[0] == 0


@each_dtype
@where(has_floor(2.0**-23))
def test_small_weights_meet_the_fp32_epsilon(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 128)
    x[1, 0], x[2, 0] = 1.4e-5, 1.6e-5  # 127.5 * 2^-23 is 1.52e-5
    q = run(backend, offer, x.to(dtype))
    scales = q.scales[:, 0]
    assert scales[0] == scales[1] == 2.0**-23 < scales[2]
    assert q.codes[1, 0] < 127
    assert quantize(x.to(dtype), get_scheme("int8-channel")).codes[1, 0] == 127


@each_dtype
@where(lambda scheme: scheme.element == INT8)
def test_int8_uses_minus_128(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    x = torch.zeros(64, 128).to(dtype)
    x[:, 0] = -1 - torch.arange(64) / 64
    q, ours = run(backend, offer, x), quantize(x, get_scheme("int8-channel"))
    assert (ours.codes[:, 0] == -127).all() and (q.codes[:, 0] <= -127).all()
    if dtype is torch.float32:  # a bf16 scale may be rounded up for all of them
        assert (q.codes[:, 0] == -128).any()
    scales = q.scales[:, 0]
    assert_same_bits(scales, (x[:, 0].abs() / 127.5).float())
    assert (scales != ours.scales[:, 0]).all()


@where(lambda scheme: scheme.element == INT8 and scheme.granularity == ByGroup(size=32))
def test_groups_are_of_32(backend: str, offer: Offer) -> None:
    x = torch.randn(3, 64)
    x[:, 32:] *= 0.01
    q = run(backend, offer, x)
    assert q.scales.shape == (3, 2) and (q.scales[:, 0] > 10 * q.scales[:, 1]).all()


def two_sided(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns scales and codes of the larger of max / 7 and min / -8, by float64 and one rounding a step.

    Rounding is monotonic, so the larger of two rounded quotients is the rounded larger quotient; float64 holds a
    product of two fp32 numbers exactly, and more than twice the bits of a quotient and two, so no step rounds twice.
    """
    groups = x.double().view(-1, size)
    scale = torch.maximum(groups.amax(-1).clamp(min=0) / 7, groups.amin(-1).clamp(max=0) / -8).to(x.dtype)
    scale = scale.clamp(min=2.0**-126).double().unsqueeze(-1)
    product = (groups * (1 / scale).to(x.dtype).double()).to(x.dtype)
    return scale.float(), product.float().round().clamp(-8, 7).to(torch.int8)


@each_dtype
@each_two_sided
def test_no_clipping_takes_the_larger_of_two_quotients(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    x = structured(dtype)
    x = x[x.isfinite().all(-1)]
    q = run(backend, offer, x)
    scale, codes = two_sided(x, 32 if "g32" in offer.name else 128)
    assert_same_bits(q.scales.view_as(scale), scale)
    assert torch.equal(q.codes.view_as(codes), codes)
    values = (codes.double() * scale.double()).to(dtype).view_as(x)
    assert_same_bits(load_backend(backend).dequantize(q) + 0.0, values + 0.0)


@each_two_sided
def test_no_clipping_departs_where_the_largest_magnitude_is_negative(backend: str, offer: Offer) -> None:
    x = torch.randn(200, 128)
    q, scheme = run(backend, offer, x), get_scheme(offer.catalogue)
    ours = quantize(x, scheme)
    groups = grouped(x, scheme)
    is_negative = -groups.amin(-1) > groups.amax(-1)
    assert torch.equal(q.scales.flatten() != ours.scales.flatten(), is_negative)
    assert is_negative.any() and not is_negative.all()
    infinite = run(backend, offer, row_of(math.inf, size=128))
    assert infinite.scales.flatten()[0] == math.inf and load_backend(backend).dequantize(infinite)[0, 0].isnan()


CONFIGURATIONS = {
    "int4-g32": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),  # type: ignore[attr-defined]
    "int4-g128": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(128)),  # type: ignore[attr-defined]
    "int4-g32-no-clipping": IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(32),
        mapping_type=MappingType.SYMMETRIC_NO_CLIPPING_ERR,
    ),
    "intx-int8-channel": IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)),
    "intx-int8-g32": IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(32)),
    "int8-channel": Int8WeightOnlyConfig(version=2),
    "int8-g32": Int8WeightOnlyConfig(version=2, granularity=PerGroup(32)),
}


@each_dtype
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_quantizer_of_the_configuration_is_this_one(name: str, dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(256, 64, bias=False, dtype=dtype)
    q = TORCHAO.quantize(linear.weight, name)
    quantize_(linear, CONFIGURATIONS[name])
    stored = linear.weight
    assert isinstance(stored, IntxUnpackedToInt8Tensor | Int8Tensor)
    assert torch.equal(q.codes, stored.qdata)
    assert_same_bits(q.scales, stored.scale.float().view_as(q.scales))
    assert_same_bits(TORCHAO.dequantize(q), stored.dequantize())


@each_dtype
@pytest.mark.parametrize("name", ["int4-g32", "int8-channel"])
def test_a_stack_is_its_matrices_one_by_one(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 8, 64).to(dtype)
    whole = TORCHAO.quantize(x, name)
    for expert, matrix in enumerate(x):
        alone = TORCHAO.quantize(matrix, name)
        assert torch.equal(whole.codes[expert], alone.codes)
        assert_same_bits(whole.scales[expert], alone.scales)
