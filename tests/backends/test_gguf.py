"""gguf: what its offers say of MXFP4, Q4_0 and Q8_0, sentence by sentence, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.format import FP16
from quantaudit.core.scheme import Division, EncodeScale, Overflow, PerGroup, Tie
from quantaudit.numerics import dequantize, get_scheme, quantize
from tests.backends.parting import DTYPES, Parting, agrees, assert_clear, changed, part, rows_of, weights

pytest.importorskip("gguf")
from quantaudit.backends import gguf_backend as gguf  # noqa: E402

BACKEND = gguf.BACKEND
MXFP4, Q4_0, Q8_0 = (get_scheme(name) for name in ("mxfp4-floor-zero", "gguf-q4_0", "gguf-q8_0"))
TESTED = {
    *(gguf.NO_SIGN, gguf.LOGARITHM, gguf.WRAPS, gguf.NOT_NAN),
    *(gguf.NO_RECIPROCAL, gguf.INFINITY_KEPT, gguf.NAN_CODES),
    gguf.INFINITE_SCALE,
}


def fake(name: str, *head: float) -> list[float]:
    """Returns what a group that starts like this becomes."""
    values = BACKEND.dequantize(BACKEND.quantize(rows_of(32, list(head)), name))
    return values[0, : len(head)].tolist()


def below_a_power_of_two(absmax_G: Tensor) -> Tensor:
    """Names maxima within 44 ulps below a power of two.

    A float32 log2 near 127 has a spacing of 2^-17: it loses what is below 2^-18, a factor of 1 - 2.6e-6.
    """
    return (absmax_G.view(torch.int32) & 0x7FFFFF) >= 0x800000 - 44


def mxfp4_special(p: Parting) -> Tensor:
    """Names the groups of the sentences on MXFP4, but for the sign of zero."""
    not_finite_G = ~p.absmax_G.isfinite()
    tiny_G = (p.absmax_G < 2.0**-125) & (p.absmax_G > 0)
    return not_finite_G | tiny_G | below_a_power_of_two(p.absmax_G)


def test_every_sentence_has_a_test() -> None:
    assert TESTED == {sentence for offer in BACKEND.schemes().values() for sentence in offer.departs}


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_departs_in_the_codes_of_negative_zeros_and_in_the_groups_that_are_named(dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        only_signs_G = ~(p.scales_G | p.values_GN.any(-1)) & (~p.codes_GN | (p.their_codes_GN == 0)).all(-1)
        return mxfp4_special(p) | only_signs_G

    assert_clear(BACKEND, "mxfp4", MXFP4, dtype, special)


def test_mxfp4_never_writes_a_negative_zero() -> None:
    for dtype in DTYPES:
        p = part(BACKEND, "mxfp4", weights(128).to(dtype), MXFP4)
        assert (p.codes_GN == (quantize(p.groups_GN, MXFP4).codes == 8)).all() and p.codes_GN.any()
        assert not (p.their_codes_GN == 8).any()


def test_mxfp4_takes_a_float_logarithm() -> None:
    x = rows_of(32, *([2.0**k * (1 - 2.0**-24)] for k in (3, 40, -40)))
    p = part(BACKEND, "mxfp4", x, MXFP4)
    assert p.scales_G.all()
    assert p.their_scales_G.tolist() == [k - 2 + 127 for k in (3, 40, -40)]
    assert not part(BACKEND, "mxfp4", x.bfloat16(), MXFP4).scales_G.any()
    assert not part(BACKEND, "mxfp4", rows_of(32, [8 * (1 - 2.0**-20)]), MXFP4).scales_G.any()


def test_mxfp4_exponents_wrap_around() -> None:
    maxima = [2.0**-126, 1.9 * 2.0**-126, 2.0**-127, 2.0**-133, 2.0**-149]
    p = part(BACKEND, "mxfp4", rows_of(32, *([m, m / 2] for m in maxima)), MXFP4)
    assert p.scales_G.all()
    assert (p.their_scales_G >= 105 + 127).all()
    assert (p.their_values_GN == 0).all()
    assert not part(BACKEND, "mxfp4", rows_of(32, [2.0**-125, 2.0**-126]), MXFP4).anywhere_G.any()


def test_mxfp4_makes_infinity_and_nan_finite() -> None:
    p = part(BACKEND, "mxfp4", rows_of(32, [math.inf, 1, -2], [-math.inf, 3], [math.nan, 1], [1, math.nan]), MXFP4)
    assert p.values_GN.all()
    assert (p.their_scales_G == 0).all()
    assert p.their_values_GN.abs().max() <= 6 * 2.0**-127


@pytest.mark.parametrize("dtype", DTYPES)
def test_q4_0_departs_only_where_it_says(dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        has_no_reciprocal_G = (p.absmax_G <= 2.0**-125) & (p.absmax_G > 0)
        return has_no_reciprocal_G | ~p.absmax_G.isfinite()

    assert_clear(BACKEND, "q4_0", Q4_0, dtype, special)


def test_q4_0_codes_without_a_reciprocal_are_not_zero_but_values_are() -> None:
    p = part(BACKEND, "q4_0", rows_of(32, [2.0**-125], [-(2.0**-130), 2.0**-131]), Q4_0)
    assert p.codes_GN.any(-1).all()
    assert not p.scales_G.any() and not p.values_GN.any()
    assert (p.their_values_GN == 0).all()
    assert not part(BACKEND, "q4_0", rows_of(32, [2.0**-124]), Q4_0).anywhere_G.any()


def test_q4_0_keeps_infinities() -> None:
    assert fake("q4_0", math.inf, 1.0)[0] == math.inf
    assert fake("q4_0", -math.inf, 1.0)[0] == -math.inf
    p = part(BACKEND, "q4_0", rows_of(32, [math.inf, 1, -2]), Q4_0)
    assert p.their_scales_G.isinf().all()
    assert p.values_GN[0].tolist() == [True] + [False] * 31


def test_q4_0_codes_beside_a_nan_are_not_zero() -> None:
    p = part(BACKEND, "q4_0", rows_of(32, [1, math.nan]), Q4_0)
    assert p.codes_GN.any() and not p.scales_G.any() and not p.values_GN.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_q8_0_is_its_scheme(dtype: torch.dtype) -> None:
    assert_clear(BACKEND, "q8_0", Q8_0, dtype, lambda p: p.absmax_G.isinf())


@pytest.mark.parametrize(
    "undone",
    [
        {"scale": {"overflow": Overflow.SPECIAL, "encode_with": EncodeScale.COMPUTED}},
        {"scale": {"format": FP16, "overflow": Overflow.SPECIAL}},
        {"division": Division.DIVIDE},
        {"tie": Tie.EVEN},
    ],
    ids=["fp32 scale", "encoded with the stored scale", "divided", "ties to even"],
)
def test_q8_0_is_nothing_else(undone: dict[str, object]) -> None:
    x = weights(4096).bfloat16()
    x[0, :32] = rows_of(32, [127.0, 0.5, 1.5, -2.5]).bfloat16()
    like = Q8_0
    scale = undone.pop("scale", None)
    if isinstance(scale, dict):
        rule = get_scheme("int8-channel").scale.model_copy(update=scale)
        like = like.model_copy(update={"scale": rule})
    assert part(BACKEND, "q8_0", x, like.model_copy(update=undone)).anywhere_G.any()


def test_q8_0_has_a_scale_for_32_values() -> None:
    q = BACKEND.quantize(weights(3), "q8_0")
    assert q.scales.shape == (3, 8)
    assert q.scheme.granularity == PerGroup(size=32)


def test_q8_0_has_an_infinite_scale_for_an_infinity() -> None:
    p = part(BACKEND, "q8_0", rows_of(32, [-math.inf, 1]), Q8_0)
    assert p.their_scales_G.isinf().all() and p.scales_G.all() and not p.values_GN.any()


def test_the_signs_of_two_opposite_maxima_are_those_of_the_first() -> None:
    assert fake("q4_0", 1.0, -1.0, 0.3) == [1.0, -0.875, 0.25]
    assert fake("q4_0", -1.0, 1.0, 0.3) == [-1.0, 0.875, 0.25]


def test_mxfp4_ties_go_toward_zero() -> None:
    assert fake("mxfp4", 6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5) == [6, 0, 0.5, 1, 1.5, 2, 3, 4]


def test_every_block_decodes_exactly_but_for_the_nan_scale() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 2)
    q = quantize(torch.zeros(256, 32), MXFP4)
    every = type(q)(
        codes=codes,
        scales=torch.arange(256, dtype=torch.uint8).unsqueeze(1),
        second_scales=None,
        offset=None,
        shape=(256, 32),
        dtype=torch.float32,
        scheme=MXFP4,
    )
    differs = BACKEND.dequantize(every) != dequantize(every)
    assert differs.any(1).nonzero().flatten().tolist() == [255]
    assert int(differs.sum()) == 32


def test_a_stack_is_its_matrices() -> None:
    x = weights(6).view(2, 3, 256)
    for name in BACKEND.schemes():
        q, first = BACKEND.quantize(x, name), BACKEND.quantize(x[1], name)
        assert torch.equal(q.codes[1], first.codes) and torch.equal(q.scales[1], first.scales)
        assert torch.equal(BACKEND.dequantize(q)[1], BACKEND.dequantize(first))


def test_rows_that_blocks_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        BACKEND.quantize(torch.zeros(2, 48), "q4_0")


def test_fractions_of_bf16_weights_are_those_on_record() -> None:
    x = weights(4000).bfloat16()
    p = part(BACKEND, "mxfp4", x, get_scheme("mxfp4-floor"))
    assert not p.scales_G.any() and agrees(p.values_GN, 0.00490, 1e-5)


def test_q4_0_codes_part_from_symmetric_ones_as_on_record() -> None:
    p = part(BACKEND, "q4_0", weights(4000), changed("int4-g32-div7.5", division=Division.RECIPROCAL))
    assert agrees(p.codes_GN, 0.520, 1e-3)
