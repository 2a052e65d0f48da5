"""bitsandbytes: what its offers say of 4 bits, nested statistics and 8 bits, sentence by sentence, and nothing else."""

from __future__ import annotations

import math

import bitsandbytes.functional as bnb
import pytest
import torch
from torch import Tensor

from quantaudit.backends import bitsandbytes_backend as b
from quantaudit.backends import load_backend
from quantaudit.backends.bitsandbytes_library import RowQuantized
from quantaudit.numerics import dequantize, get_scheme, pack, quantize
from quantaudit.numerics.codebooks import DYNAMIC8
from quantaudit.numerics.rounding import decode
from tests.backends.parting import DTYPES, Parting, assert_clear, every_matrix, part, rows_of, weights
from tests.numerics.bits import assert_same_bits, bits

BACKEND = load_backend("bitsandbytes")
FOUR_BIT = ["nf4", "fp4"]
SMALLEST_NORMAL = 2.0**-126
INT8, DYNAMIC = get_scheme("int8-channel"), get_scheme("dynamic8-b4096")
TESTED = {
    *(b.PARTIAL_BLOCK, b.FLUSHED, b.INFINITY_POSITIVE, b.NAN_CODES),
    *(b.LIBRARY_MEAN, b.NEAR_SEARCH, b.NESTED_SPECIAL),
    *(b.MULTIPLIED, b.TWICE_ROUNDED, b.SMALL_ROWS, b.INFINITE_SCALE),
    *(b.NEAR_VALUES, b.INFINITE_BLOCK, b.NAN_LOWEST, b.NO_RECIPROCAL),
}


def only_flushed(p: Parting) -> Tensor:
    """Names blocks that part in nothing but values below 2^-126 that decode to zero."""
    absmax_GN = p.absmax_G.unsqueeze(1)
    is_flushed_GN = (p.their_values_GN == 0) & (p.groups_GN.abs() <= absmax_GN) & (absmax_GN < 2.0**-122)
    return ~(p.scales_G | p.codes_GN.any(-1) | (p.values_GN & ~is_flushed_GN).any(-1))


def test_every_sentence_has_a_test() -> None:
    assert TESTED == {sentence for offer in BACKEND.schemes().values() for sentence in offer.departs}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FOUR_BIT)
def test_four_bits_depart_only_where_they_say(name: str, dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        flushed_G = only_flushed(p) if dtype == torch.bfloat16 else torch.zeros_like(p.scales_G)
        return ~p.absmax_G.isfinite() | flushed_G

    assert_clear(BACKEND, name, get_scheme(f"{name}-b64"), dtype, special)


@pytest.mark.parametrize("name", FOUR_BIT)
def test_bf16_values_are_flushed_below_the_smallest_normal_number_only(name: str) -> None:
    x = (torch.randn(4, 64) * 2.0**-124).bfloat16()
    q = BACKEND.quantize(x, name)
    theirs, exact = BACKEND.dequantize(q).float(), dequantize(quantize(x, get_scheme(f"{name}-b64"))).float()
    differs = theirs != exact
    assert (theirs[differs] == 0).all() and (exact[differs].abs() < SMALLEST_NORMAL).all()
    assert (exact.abs() < SMALLEST_NORMAL).any()


@pytest.mark.parametrize("name", FOUR_BIT)
def test_infinities_of_both_signs_become_positive(name: str) -> None:
    x = rows_of(64, [math.inf, 1, -math.inf], [-math.inf, 1])
    p = part(BACKEND, name, x, get_scheme(f"{name}-b64"))
    assert (p.their_scales_G == math.inf).all() and p.scales_G.all()
    assert torch.equal(p.their_values_GN == math.inf, x.isinf())
    assert torch.equal(p.their_values_GN.isnan(), ~x.isinf())


@pytest.mark.parametrize("name", FOUR_BIT)
def test_codes_beside_a_nan_are_not_zero(name: str) -> None:
    p = part(BACKEND, name, rows_of(64, [1, math.nan]), get_scheme(f"{name}-b64"))
    assert p.codes_GN.any() and not p.scales_G.any() and not p.values_GN.any()


def test_a_partial_block_is_divided() -> None:
    whole, partial = torch.randn(300, 64).bfloat16(), torch.randn(300, 62).bfloat16()
    fp4 = get_scheme("fp4-b64")
    assert not part(BACKEND, "fp4", whole, fp4).anywhere_G.any()
    parted = [part(BACKEND, "fp4", row[None], fp4) for row in partial]
    assert any(p.codes_GN.any() for p in parted)
    table = bnb.get_4bit_type("fp4", device="cpu")  # type: ignore[no-untyped-call]
    order = table.argsort()
    borders = (table[order[:-1]] + table[order[1:]]) / 2
    for row, p in zip(partial.float(), parted, strict=True):
        ratio = row / row.abs().max()
        assert torch.equal(p.their_codes_GN[0, :62].long(), order[torch.bucketize(ratio, borders)])


@pytest.mark.parametrize("name", FOUR_BIT)
def test_a_partial_zero_block_has_a_scale(name: str) -> None:
    x = torch.zeros(1, 100)
    scales = BACKEND.quantize(x, name).scales
    assert scales[0] == 0 and scales[1] == torch.tensor(1e-38)
    assert (BACKEND.dequantize(BACKEND.quantize(x, name)) == 0).all()


@pytest.mark.parametrize("name", FOUR_BIT)
def test_bytes_are_those_of_the_library(name: str) -> None:
    x = weights(16)
    packed, state = bnb.quantize_4bit(x, blocksize=64, quant_type=name)
    q = BACKEND.quantize(x, name)
    assert torch.equal(pack(q.codes.flatten(), q.scheme.layout), packed.flatten())
    assert_same_bits(BACKEND.dequantize(q), bnb.dequantize_4bit(packed, state))


@pytest.mark.parametrize("name", FOUR_BIT)
def test_nested_values_are_those_of_the_library(name: str) -> None:
    x = weights(64)
    packed, state = bnb.quantize_4bit(x, blocksize=64, quant_type=name, compress_statistics=True)
    q = BACKEND.quantize(x, f"{name}-double")
    assert torch.equal(q.scales, state.absmax)
    assert_same_bits(BACKEND.dequantize(q), bnb.dequantize_4bit(packed, state))


def blocks_of(absmax: Tensor) -> Tensor:
    """Returns one block a row with these absolute maxima."""
    x = torch.randn(len(absmax), 64).clamp(-0.9, 0.9) * absmax.unsqueeze(1)
    x[:, 7] = absmax
    return x


@pytest.mark.parametrize("name", FOUR_BIT)
def test_nested_scales_part_by_the_mean_and_by_the_search_only(name: str) -> None:
    nested = get_scheme(f"{name}-b64-double")
    # Sums of these maxima are exact in any order, so both means are one number.
    x = blocks_of(torch.randint(1, 1 << 12, (1024,)).float())
    theirs, ours = BACKEND.quantize(x, f"{name}-double"), quantize(x, nested)
    assert theirs.offset is not None and ours.offset is not None
    assert theirs.second_scales is not None and ours.second_scales is not None
    assert_same_bits(theirs.offset, ours.offset)
    assert_same_bits(theirs.second_scales, ours.second_scales)
    assert torch.equal(theirs.codes, ours.codes)
    distance = (theirs.scales.int() - ours.scales.int()).abs()
    assert distance.max() <= 1 and distance.bool().float().mean() < 0.02


def test_nested_scales_at_the_mean_are_four_codes_off() -> None:
    x = blocks_of(torch.tensor([1.0, 3.0] + [2.0] * 254))
    theirs, ours = BACKEND.quantize(x, "nf4-double"), quantize(x, get_scheme("nf4-b64-double"))
    assert ours.scales[2:].tolist() == [127] * 254
    assert theirs.scales[2:].tolist() == [131] * 254


def test_the_mean_is_that_of_torch() -> None:
    absmax = torch.rand(4097) + 0.5
    q = BACKEND.quantize(blocks_of(absmax), "nf4-double")
    assert q.offset is not None
    assert_same_bits(q.offset, absmax.mean().view(1))


def test_a_nested_matrix_with_a_special_number_is_nan_with_other_codes() -> None:
    for number in (math.inf, math.nan):
        x = torch.randn(4, 64)
        x[1, 1] = number
        q = BACKEND.quantize(x, "nf4-double")
        assert BACKEND.dequantize(q).isnan().all()
        assert not torch.equal(q.codes, quantize(x, get_scheme("nf4-b64-double")).codes)


def restate_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns codes and fp32 values of rows, by what the sentences on int8 state."""
    absmax = x.float().abs().amax(-1, keepdim=True)
    ratio = 127 / absmax
    codes = torch.where(ratio.isfinite(), x.float() * ratio, 0.0).round().to(torch.int8)
    return codes, codes.float() * absmax * torch.tensor(1 / 127)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_what_its_sentences_say(dtype: torch.dtype) -> None:
    for x in every_matrix(dtype):
        q = BACKEND.quantize(x, "int8")
        codes, values = restate_rows(x)
        assert torch.equal(q.codes, codes)
        assert torch.equal(bits(BACKEND.dequantize(q)), bits(values))
        scales = quantize(x, INT8).scales
        assert torch.equal(bits(q.scales)[~q.scales.isinf()], bits(scales)[~q.scales.isinf()])
        assert (scales[q.scales.isinf()]).isnan().all()


def test_int8_values_are_multiplied_not_divided() -> None:
    p = part(BACKEND, "int8", weights(512).bfloat16(), INT8)
    assert p.codes_GN.any() and not p.scales_G.any()
    ratio_GN = p.groups_GN.double() * 127 / p.absmax_G.double().unsqueeze(1)
    # Both ways round twice, to 24 bits each: from a number below 128, at most 2^-17 away from the border.
    assert ((ratio_GN.abs() % 1 - 0.5).abs()[p.codes_GN] < 2.0**-16).all()


def test_int8_values_are_an_ulp_off_or_infinite() -> None:
    x = weights(64)
    p = part(BACKEND, "int8", x, INT8)
    ours = dequantize(quantize(x, INT8))
    assert p.values_GN.any() and not p.codes_GN.any()
    # Three roundings against two: no more than five halves of an ulp apart.
    assert ((p.their_values_GN - ours).abs() <= 2.5 * 2.0**-23 * ours.abs()).all()
    assert BACKEND.dequantize(BACKEND.quantize(rows_of(8, [2.0**122]), "int8"))[0, 0] == math.inf
    assert BACKEND.dequantize(BACKEND.quantize(weights(2).bfloat16(), "int8")).dtype == torch.float32


def test_int8_rows_of_tiny_numbers_get_codes_of_zero() -> None:
    p = part(BACKEND, "int8", rows_of(8, [3.73e-37, 1e-37], [2.0**-140]), INT8)
    assert (p.their_codes_GN == 0).all() and p.codes_GN.any(-1).all()
    assert not part(BACKEND, "int8", rows_of(8, [3.74e-37]), INT8).codes_GN.any()


def test_int8_rows_with_an_infinity_have_an_infinite_scale() -> None:
    p = part(BACKEND, "int8", rows_of(8, [-math.inf, 1]), INT8)
    assert p.their_scales_G.isinf().all() and not p.values_GN.any()


def test_int8_keeps_the_absolute_maxima_that_it_decodes_with() -> None:
    x = weights(200)
    q = BACKEND.quantize(x, "int8")
    codes, absmax, _ = bnb.int8_vectorwise_quant(x)
    assert isinstance(q, RowQuantized)
    assert_same_bits(q.absmax.flatten(), absmax)
    assert_same_bits(BACKEND.dequantize(q), bnb.int8_vectorwise_dequant(codes, absmax))


@pytest.mark.parametrize("dtype", DTYPES)
def test_blockwise_codes_are_near_the_nearest(dtype: torch.dtype) -> None:
    x = torch.randn(512, 512).to(dtype)
    theirs, exact = BACKEND.quantize(x, "int8-blockwise"), quantize(x, DYNAMIC)
    assert theirs.scheme.element == DYNAMIC8
    assert_same_bits(theirs.scales, exact.scales)
    distance = (theirs.codes.int() - exact.codes.int()).abs()
    assert distance.max() <= 4
    assert distance[theirs.codes.int().sub(127).abs() > 8].max() == 1
    # On record: 397 to 465 of 262144 Gaussian values. A Poisson count of 431 has a 99 % interval of
    # 431 +- 2.576 sqrt(2 * 431), the other draw counted. In bf16 many values lie on a border.
    if dtype == torch.float32:
        assert abs(int(distance.bool().sum()) - 431) < 2.576 * math.sqrt(2 * 431)


def test_blockwise_zeros_do_not_stay_zero() -> None:
    x = torch.zeros(1, 4096)
    x[0, 0] = -8.0
    q = BACKEND.quantize(x, "int8-blockwise")
    assert q.codes[0, 1:].unique().tolist() == [131]
    assert BACKEND.dequantize(q)[0, 1] == 8 * decode(torch.tensor([131]), DYNAMIC8)[0] > 8 * 2.1e-5
    assert dequantize(quantize(x, DYNAMIC))[0, 1] == 0


def flat(*head: float) -> Tensor:
    """Returns one block of 4096 that starts like this, with quarters after it."""
    x = torch.full((1, 4096), 0.25)
    x[0, : len(head)] = torch.tensor(head)
    return x


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_blockwise_infinities_become_negative_and_the_rest_positive(infinity: float) -> None:
    q = BACKEND.quantize(flat(infinity, -2.0), "int8-blockwise")
    values = BACKEND.dequantize(q)
    assert q.scales.tolist() == [math.inf] and values[0, 0] == -math.inf and (values[0, 1:] == math.inf).all()
    assert dequantize(quantize(flat(infinity), DYNAMIC)).isnan().all()


def test_blockwise_nans_become_the_lowest_value() -> None:
    q = BACKEND.quantize(flat(math.nan, 8.0), "int8-blockwise")
    values = BACKEND.dequantize(q)
    assert q.scales.tolist() == [8.0] and q.codes[0, :2].tolist() == [0, 255]
    assert values[0, 0] == 8 * decode(torch.tensor([0]), DYNAMIC8)[0] < -8 * 0.99
    assert dequantize(quantize(flat(math.nan), DYNAMIC)).isnan().all()


@pytest.mark.parametrize("absmax", [2.0**-128, 2.0**-149, 0.0])
def test_blockwise_values_without_a_reciprocal_become_one_of_two(absmax: float) -> None:
    x = torch.zeros(1, 4096)
    x[0, 0], x[0, 1] = absmax, -absmax
    q = BACKEND.quantize(x, "int8-blockwise")
    assert q.codes[0].tolist() == [255 if absmax else 0] + [0] * 4095
    assert not dequantize(quantize(x, DYNAMIC)).any()
    x[0, 0] = 2.0**-127
    assert BACKEND.quantize(x, "int8-blockwise").codes[0, 2] == 131


def test_blockwise_values_are_those_of_the_library() -> None:
    x = weights(40, 250)
    codes, state = bnb.quantize_blockwise(x)
    q = BACKEND.quantize(x, "int8-blockwise")
    assert torch.equal(q.codes, codes) and q.scales.shape == (3,)
    assert_same_bits(BACKEND.dequantize(q), bnb.dequantize_blockwise(codes, state))


@pytest.mark.parametrize("name", list(b.OFFERS))
def test_a_stack_is_its_matrices(name: str) -> None:
    x = weights(6, 320).view(2, 3, 320)
    q, second = BACKEND.quantize(x, name), BACKEND.quantize(x[1], name)
    assert torch.equal(q.codes[1], second.codes) and torch.equal(q.scales[1], second.scales)
    assert torch.equal(BACKEND.dequantize(q)[1], BACKEND.dequantize(second))


def test_a_stack_of_whole_blocks_is_quantized_as_the_library_does_at_once() -> None:
    x = weights(6, 320).view(2, 3, 320)
    packed, _ = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4")
    assert torch.equal(pack(BACKEND.quantize(x, "nf4").codes.flatten(), get_scheme("nf4-b64").layout), packed.flatten())


def test_scaling_one_block_changes_the_values_of_others_under_nesting() -> None:
    x = weights(256, 64)
    larger = x.clone()
    larger[0] *= 50
    before, after = (BACKEND.dequantize(BACKEND.quantize(t, "nf4-double"))[1:] for t in (x, larger))
    assert (before != after).float().mean() > 0.8
    single = [BACKEND.dequantize(BACKEND.quantize(t, "nf4"))[1:] for t in (x, larger)]
    assert torch.equal(*single)
