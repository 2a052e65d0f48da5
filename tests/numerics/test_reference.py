"""The tensor reference equals the scalar one, bit for bit, for every scheme on every structured matrix."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.format import BF16, E4M3, FP16, FP32, INT4
from quantaudit.core.scheme import (
    Arithmetic,
    CodeRange,
    Division,
    ExponentRounding,
    ExponentScale,
    FlatBlocks,
    LinearScale,
    Overflow,
    PerGroup,
    PerToken,
    Scheme,
    Statistic,
    StatisticTie,
    Tie,
)
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, quantize, scheme_names
from quantaudit.numerics.ladder import zero_code
from quantaudit.numerics.scalar import group_coordinates, quantize_matrix
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import MATRICES, gaussian

FORMATS = {torch.float32: FP32, torch.bfloat16: BF16}


def assert_equals_scalar(x: Tensor, scheme: Scheme) -> None:
    """Compares codes, stored scales, the second level and decoded values of one matrix."""
    ours = quantize(x, scheme)
    exact = quantize_matrix(x.float().tolist(), scheme, FORMATS[x.dtype])
    assert ours.codes.tolist() == exact.codes
    assert_same_bits(ours.scales.flatten(), torch.tensor(exact.scales))
    assert_same_bits(dequantize(ours, torch.float32), torch.tensor(exact.values))
    second = [] if ours.second_scales is None else ours.second_scales.tolist()
    assert_same_bits(torch.tensor(second), torch.tensor(exact.second_scales))
    assert (ours.offset is None) == (exact.offset is None)
    if ours.offset is not None:
        assert_same_bits(ours.offset, torch.tensor([exact.offset]))


@pytest.mark.parametrize("dtype", list(FORMATS), ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", scheme_names())
def test_tensor_equals_scalar_on_structured_matrices(name: str, dtype: torch.dtype) -> None:
    # No more columns than the largest group keep exact arithmetic affordable.
    scheme = get_scheme(name)
    is_wide = not isinstance(scheme.granularity, FlatBlocks | PerGroup) or scheme.granularity.size > 64
    for make in MATRICES.values():
        x = make().to(dtype)
        assert_equals_scalar(x[:2, :128] if is_wide else x[:, :64], scheme)


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0", "nf4-b64", "fp4-b64-double", "fp8-tensor"])
def test_partial_blocks_equal_the_scalar_reference(name: str) -> None:
    x = gaussian().repeat(44, 1)[:130, :131] * torch.linspace(0.1, 3, 131)
    assert_equals_scalar(x[:130:10, :131], get_scheme(name))
    scheme = get_scheme(name)
    q = quantize(x, scheme)
    assert q.codes.shape == x.shape
    if "block128" in name:
        assert q.scales.shape == (2, 2)
        corner = quantize(x[128:, 128:].contiguous(), scheme)
        assert torch.equal(q.codes[128:, 128:], corner.codes) and torch.equal(q.scales[1:, 1:], corner.scales)


def library_schemes() -> list[Scheme]:
    """Lists arithmetic that the catalogue does not use: other precisions, floors, statistics, overflow."""

    def integer(scale: LinearScale | ExponentScale, **update: object) -> Scheme:
        fields = {"name": "x", "source": "x", "element": INT4, "granularity": PerGroup(size=32), "scale": scale}
        return Scheme.model_validate(fields | {"code_range": CodeRange(low=-8, high=7)} | update)

    signed = LinearScale(statistic=Statistic.SIGNED_ABSMAX, statistic_tie=StatisticTie.LAST, divisor=-8.0, format=FP16)
    return [
        integer(LinearScale(divisor=7.5, arithmetic=Arithmetic.INPUT), arithmetic=Arithmetic.INPUT),
        integer(
            LinearScale(divisor=7.5, arithmetic=Arithmetic.INPUT, scale_floor=2.0**-126),
            arithmetic=Arithmetic.INPUT,
            division=Division.RECIPROCAL,
        ),
        integer(LinearScale(divisor=7.0, division=Division.RECIPROCAL, amax_floor=1e-5), tie=Tie.AWAY),
        integer(LinearScale(divisor=7.0, zero_scale=1.0, format=BF16), tie=Tie.UP),
        integer(LinearScale(divisor=7.0), division=Division.RECIPROCAL, tie=Tie.ZERO),
        integer(signed, tie=Tie.LOWER),
        integer(signed.model_copy(update={"overflow": Overflow.SPECIAL}), tie=Tie.BIASED_UP),
        integer(LinearScale(divisor=448.0, format=E4M3, overflow=Overflow.SPECIAL, scale_floor=2.0**-9)),
        integer(ExponentScale(rounding=ExponentRounding.NEAREST, divisor=7.0, zero_code=127)),
        integer(LinearScale(divisor=1.0)).model_copy(
            update={"element": E4M3, "code_range": None, "overflow": Overflow.SPECIAL, "granularity": PerToken()}
        ),
    ]


@pytest.mark.parametrize("dtype", list(FORMATS), ids=["fp32", "bf16"])
@pytest.mark.parametrize("scheme", library_schemes(), ids=lambda s: s.arithmetic_digest[:6])
def test_arithmetic_outside_the_catalogue_equals_the_scalar_reference(scheme: Scheme, dtype: torch.dtype) -> None:
    for make in MATRICES.values():
        assert_equals_scalar(make()[:2, :64].to(dtype), scheme)


@pytest.mark.parametrize("name", scheme_names())
def test_an_expert_of_a_stack_is_quantized_as_if_alone(name: str) -> None:
    stack = torch.randn(3, 6, 128) * torch.tensor([1.0, 1e-3, 40.0]).view(3, 1, 1)
    stack[1, 2, 5] = math.nan
    scheme = get_scheme(name)
    together = quantize(stack, scheme)
    for index, expert in enumerate(stack):
        alone = quantize(expert, scheme)
        assert torch.equal(together.codes[index], alone.codes)
        assert_same_bits(together.scales[index], alone.scales)
        if together.second_scales is not None and alone.second_scales is not None:
            assert_same_bits(together.second_scales[index], alone.second_scales)
        if together.offset is not None and alone.offset is not None:
            assert_same_bits(together.offset[index], alone.offset)
    assert_same_bits(dequantize(together), torch.stack([fake_quantize(expert, scheme) for expert in stack]))


@pytest.mark.parametrize("name", ["mxfp4-even", "mxfp8-e4m3-floor", "int4-g32-div7", "int8-channel"])
def test_leading_axes_and_strides_do_not_matter(name: str) -> None:
    scheme = get_scheme(name)
    x = torch.randn(2, 3, 4, 64)
    expected = fake_quantize(x.reshape(24, 64), scheme).view_as(x)
    assert_same_bits(fake_quantize(x, scheme), expected)
    assert_same_bits(fake_quantize(x.transpose(0, 2), scheme), expected.transpose(0, 2))
    assert_same_bits(fake_quantize(x[0, 0, 0], scheme), expected[0, 0, 0])
    assert fake_quantize(x[:0], scheme).shape == (0, 3, 4, 64)


@pytest.mark.parametrize("name", scheme_names())
@pytest.mark.parametrize("dtype", list(FORMATS), ids=["fp32", "bf16"])
def test_fake_quantization_is_quantize_then_dequantize_in_the_dtype_of_the_input(name: str, dtype: torch.dtype) -> None:
    x = gaussian().to(dtype).requires_grad_()
    q = quantize(x, get_scheme(name))
    fake = fake_quantize(x, get_scheme(name))
    assert (fake.dtype, fake.requires_grad) == (dtype, False)
    assert_same_bits(fake, dequantize(q))
    assert_same_bits(dequantize(q, torch.bfloat16), dequantize(q, torch.float32).bfloat16())


@pytest.mark.parametrize("name", [n for n in scheme_names() if n.startswith("mx")])
def test_values_on_the_grid_stay(name: str) -> None:
    for make in MATRICES.values():
        once = fake_quantize(make(), get_scheme(name))
        finite = once[once.isfinite().all(1)]  # a value may decode to an infinity, which then spreads to its group
        assert_same_bits(fake_quantize(finite, get_scheme(name)), finite)


# A single level of E4M3 scales is cut off at both ends, so the size of the weights matters.
@pytest.mark.parametrize("name", [n for n in scheme_names() if n != "nvfp4-single-level"])
def test_powers_of_two_pass_through(name: str) -> None:
    # By 8 no scale leaves the normal numbers of its format, of which fp16 (Q4_0 and Q8_0) has the fewest.
    x = gaussian()
    assert_same_bits(fake_quantize(x * 8, get_scheme(name)), fake_quantize(x, get_scheme(name)) * 8)


def test_a_single_level_loses_small_weights_at_its_floor() -> None:
    scheme = get_scheme("nvfp4-single-level")
    x = torch.zeros(1, 16)
    for top, rest in ((6 * 2.0**-6, 6 * 2.0**-6), (2.0**-8, 0.0), (6 * 448.0, 6 * 448.0), (4096.0, 6 * 448.0)):
        x[0, 0] = top  # the floor is 2^-6 and 2^-8 is the tie at a quarter of it; the largest scale is 448
        assert fake_quantize(x, scheme)[0, 0] == rest


def is_odd(scheme: Scheme) -> bool:
    """Returns whether negating the input negates the output (up to the sign of zero)."""
    symmetric = scheme.code_range is None or scheme.code_range.low == -scheme.code_range.high
    return symmetric and scheme.tie in (Tie.EVEN, Tie.AWAY, Tie.ZERO)


@pytest.mark.parametrize("name", [n for n in scheme_names() if is_odd(get_scheme(n))])
def test_negated_inputs_have_negated_outputs(name: str) -> None:
    for make in (MATRICES["gaussian"], MATRICES["ties"], MATRICES["saturating"]):
        x = make()
        negated, expected = fake_quantize(-x, get_scheme(name)), -fake_quantize(x, get_scheme(name))
        # A scale that overflowed to infinity (Q8_0) makes NaN of zeros.
        torch.testing.assert_close(negated, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", scheme_names())
def test_zero_groups_decode_to_zero(name: str) -> None:
    zero = torch.zeros(2, 128)
    zero[1, ::2] = -0.0
    assert torch.equal(fake_quantize(zero, get_scheme(name)), torch.zeros(2, 128))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", scheme_names())
def test_nan_and_infinity_make_nan_of_their_group_and_of_nothing_else(name: str, poison: float) -> None:
    scheme = get_scheme(name)
    x = torch.randn(130, 256)
    x[3, 7] = poison
    groups = group_coordinates(130, 256, scheme.granularity)
    spread = torch.zeros(130, 256, dtype=torch.bool)
    if isinstance(scheme.scale, LinearScale) and scheme.scale.second_level is not None:
        spread[:] = True
    else:
        rows, cols = zip(*next(group for group in groups if (3, 7) in group), strict=True)
        spread[rows, cols] = True
    q = quantize(x, scheme)
    assert torch.equal(dequantize(q).isnan(), spread)
    assert q.codes[spread].unique().tolist() == [zero_code(scheme.element)]


def test_negative_zero_keeps_its_sign_where_the_format_has_one() -> None:
    x = torch.zeros(1, 32)
    x[0, 1], x[0, 2] = -0.0, -(2.0**-140)
    codes = quantize(x, get_scheme("mxfp4-floor")).codes[0, :3].tolist()
    assert codes[:2] == [0, 8]
    assert quantize(torch.zeros(1, 128), get_scheme("mxfp4-floor")).scales.unique().tolist() == [0]
    assert torch.signbit(fake_quantize(-torch.zeros(1, 32), get_scheme("nvfp4"))).all()


def test_a_dtype_that_is_not_a_weight_is_refused() -> None:
    for dtype in (torch.float64, torch.float16, torch.int8):
        with pytest.raises(InputError, match="expected float32 or bfloat16"):
            quantize(torch.zeros(1, 32, dtype=dtype), get_scheme("mxfp4-even"))


def test_a_group_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        quantize(torch.zeros(4, 48), get_scheme("mxfp4-even"))
    assert caught.value.given == "a tensor of shape [4, 48] with groups of 32"
    assert "multiple of 32, got 48" in caught.value.expected


def test_shapes_without_values_are_refused_where_a_scale_would_have_nothing_to_measure() -> None:
    for shape, name in (((), "mxfp4-even"), ((4, 0), "mxfp4-even"), ((0, 32), "fp8-tensor"), ((0, 64), "nf4-b64")):
        with pytest.raises(InputError, match="at least one"):
            quantize(torch.zeros(shape), get_scheme(name))


def test_a_quantized_tensor_is_immutable_and_describes_itself() -> None:
    q = quantize(torch.randn(4, 64), get_scheme("mxfp4-even"))
    assert (q.shape, q.dtype, q.scheme.name) == ((4, 64), torch.float32, "mxfp4-even")
    with pytest.raises(dataclasses.FrozenInstanceError):
        q.dtype = torch.bfloat16  # type: ignore[misc]
    assert not hasattr(q, "__dict__")
