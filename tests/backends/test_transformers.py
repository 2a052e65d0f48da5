"""transformers: what its offers say of FP8 blocks and of decoding MXFP4, sentence by sentence, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.format import E4M3
from quantaudit.core.scheme import Tie
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from quantaudit.numerics.ladder import ElementRule
from quantaudit.numerics.rounding import decode, encode
from tests.backends.parting import DTYPES, Parting, agrees, part, weights
from tests.numerics.bits import assert_same_bits, bits
from tests.numerics.structured import MATRICES

pytest.importorskip("transformers")
from quantaudit.backends import transformers_backend as t  # noqa: E402

BACKEND = t.BACKEND
FP8, UE8M0 = get_scheme("fp8-block128"), get_scheme("fp8-block128-ue8m0")
TESTED = {
    *(t.DECODE_ONLY, t.NAN_IS_LARGE, t.TWO_RECIPROCALS, t.ZERO_BLOCK, t.NO_RECIPROCAL, t.INFINITE_SCALE, t.NAN_STAYS),
    *(t.WHOLE_BLOCKS, t.SMALLEST_SCALE, t.LOGARITHM, t.SPECIAL_CODES),
}


def blocks(dtype: torch.dtype) -> list[Tensor]:
    """Lists the structured matrices, repeated to whole blocks, and blocks of many sizes."""
    repeated = [make().repeat(64, 1)[:128] for make in MATRICES.values()]
    sizes = [torch.randn(128, 128) * 10.0**k for k in (0, -3, -37, -41, 5, 37)]
    return [x.to(dtype) for x in (*repeated, torch.cat(sizes, 1), torch.zeros(128, 128), weights(256))]


def block_of(*head: float) -> Tensor:
    """Returns one block that starts like this, zeros after."""
    x = torch.zeros(128, 128)
    x[0, : len(head)] = torch.tensor(head)
    return x


def fake(name: str, *head: float) -> list[float]:
    """Returns what a block that starts like this becomes, one more value than given."""
    values = BACKEND.dequantize(BACKEND.quantize(block_of(*head), name))
    return values[0, : len(head) + 1].tolist()


def mxfp4(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Returns an MXFP4 tensor of these codes, [R, 32 G], and scales, [R, G]."""
    return QuantizedTensor(
        codes=codes,
        scales=scales,
        second_scales=None,
        offset=None,
        shape=tuple(codes.shape),
        dtype=dtype,
        scheme=get_scheme("mxfp4-rceil"),
    )


def test_every_sentence_has_a_test() -> None:
    assert TESTED == {sentence for offer in BACKEND.schemes().values() for sentence in offer.departs}


def test_mxfp4_is_not_quantized_here() -> None:
    with pytest.raises(NotMeasuredError, match="GPU kernel"):
        BACKEND.quantize(weights(2), "mxfp4-decode")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mxfp4_code_under_every_scale_decodes_exactly_but_for_the_nan_scale(dtype: torch.dtype) -> None:
    every = mxfp4(
        torch.arange(16, dtype=torch.uint8).repeat(256, 2), torch.arange(256, dtype=torch.uint8).unsqueeze(1), dtype
    )
    theirs, ours = BACKEND.dequantize(every), dequantize(every)
    differs = (bits(theirs) != bits(ours)).any(1)
    assert differs.nonzero().flatten().tolist() == [255]
    row = theirs[255, :16].tolist()
    assert row[:3] == [0.0, 2.0**127, math.inf] and row[8:11] == [-0.0, -(2.0**127), -math.inf]
    assert int((theirs[255] != ours[255]).sum()) == 32


def test_mxfp4_keeps_rows_columns_and_experts_in_place() -> None:
    q = quantize(weights(6, 96).view(2, 3, 96), get_scheme("mxfp4-even"))
    assert_same_bits(BACKEND.dequantize(q), dequantize(q))


def restate_fp8(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns scale, codes and fp32 values of one block, by what the sentences state."""
    absmax = x.float().abs().amax()
    multiplier = torch.where(absmax > 0, 448 / absmax, torch.ones(()))
    codes = encode((x.float() * multiplier).clamp(-448, 448), ElementRule(E4M3, Tie.EVEN))
    scale = 1 / multiplier
    return scale, codes, decode(codes, E4M3) * scale


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_what_its_sentences_say(dtype: torch.dtype) -> None:
    for x in blocks(dtype):
        q = BACKEND.quantize(x, "fp8-block128")
        values = BACKEND.dequantize(q)
        for row in range(0, x.shape[0], 128):
            for col in range(0, x.shape[1], 128):
                here = (slice(row, row + 128), slice(col, col + 128))
                scale, codes, decoded = restate_fp8(x[here])
                assert_same_bits(q.scales[row // 128, col // 128], scale)
                assert torch.equal(bits(decode(q.codes[here], E4M3)), bits(decode(codes, E4M3)))
                assert_same_bits(values[here], decoded.to(dtype))


def test_fp8_scales_are_an_ulp_off_as_often_as_on_record() -> None:
    x = weights(2048, 1024)
    p = part(BACKEND, "fp8-block128", x, FP8)
    ours = quantize(x, FP8).scales.flatten()
    # Two roundings against one: three halves of an ulp, each at most 2^-23 of the number.
    assert ((p.their_scales_G - ours).abs() <= 1.5 * 2.0**-23 * ours).all()
    assert agrees(p.values_GN, 0.370, 1e-3, num_stated=1 << 20)
    # Where the scale is the same, a value parts only by the code, and that on a rounding border only.
    same_scale_GN = (p.their_scales_G == ours).unsqueeze(1)
    assert (p.values_GN & same_scale_GN).float().mean() < 1e-4


def test_fp8_zero_blocks_have_a_scale_of_one() -> None:
    assert BACKEND.quantize(block_of(0.0), "fp8-block128").scales.tolist() == [[1.0]]
    assert BACKEND.quantize(block_of(0.0), "fp8-block128-ue8m0").scales.tolist() == [[127]]
    assert quantize(block_of(0.0), FP8).scales.tolist() == [[0.0]]
    assert quantize(block_of(0.0), UE8M0).scales.tolist() == [[0]]


def test_fp8_tiny_blocks_become_zero_and_their_zeros_nan() -> None:
    values = fake("fp8-block128", 1.3e-36, -1e-37)
    assert values[:2] == [0.0, 0.0] and math.isnan(values[2])
    assert fake("fp8-block128", 1.4e-36)[1] == 0.0


def test_infinities_make_the_block_nan() -> None:
    infinite = block_of(math.inf, 1.0)
    q = BACKEND.quantize(infinite, "fp8-block128")
    assert q.scales.isinf().all() and q.codes.any() and BACKEND.dequantize(q).isnan().all()
    q = BACKEND.quantize(infinite, "fp8-block128-ue8m0")
    assert q.scales.tolist() == [[255]] and q.codes.any() and BACKEND.dequantize(q).isnan().all()


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0"])
def test_a_nan_stays_alone(name: str) -> None:
    values = fake(name, math.nan, 1.0, 300.0)
    assert math.isnan(values[0]) and values[1:] == [1.0, 288.0, 0.0]


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0"])
def test_partial_blocks_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="leaves others unquantized"):
        BACKEND.quantize(weights(130, 256), name)


def has_a_small_scale(p: Parting) -> Tensor:
    """Names blocks whose scale would be 2^-127: absmax up to 448 * 2^-127."""
    return p.absmax_G <= 448 * 2.0**-127


@pytest.mark.parametrize("dtype", DTYPES)
def test_ue8m0_departs_only_where_it_says(dtype: torch.dtype) -> None:
    for x in blocks(dtype):
        p = part(BACKEND, "fp8-block128-ue8m0", x, UE8M0)
        assert p.is_clear_of(has_a_small_scale(p) | ~p.absmax_G.isfinite())


def test_ue8m0_scales_are_at_least_the_smallest_normal_number() -> None:
    maxima = [448 * 2.0**-127, 2.0**-130, 450 * 2.0**-127]
    found = [int(BACKEND.quantize(block_of(m), "fp8-block128-ue8m0").scales) for m in maxima]
    assert found == [1, 1, 1]
    assert [int(quantize(block_of(m), UE8M0).scales) for m in maxima] == [0, 0, 1]


def test_ue8m0_takes_a_float_logarithm() -> None:
    for k in (60, -60):
        above = math.ldexp(448 * (1 + 2.0**-23), k)
        assert int(BACKEND.quantize(block_of(above), "fp8-block128-ue8m0").scales) == 127 + k
        assert int(quantize(block_of(above), UE8M0).scales) == 128 + k
        far = math.ldexp(448 * (1 + 2.0**-16), k)
        assert int(BACKEND.quantize(block_of(far), "fp8-block128-ue8m0").scales) == 128 + k
        assert not part(BACKEND, "fp8-block128-ue8m0", block_of(above).bfloat16(), UE8M0).anywhere_G.any()


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0"])
def test_a_stack_is_its_matrices(name: str) -> None:
    x = weights(256).view(2, 128, 256)
    q, second = BACKEND.quantize(x, name), BACKEND.quantize(x[1], name)
    assert torch.equal(q.codes[1], second.codes) and torch.equal(q.scales[1], second.scales)
    assert torch.equal(BACKEND.dequantize(q)[1], BACKEND.dequantize(second))
