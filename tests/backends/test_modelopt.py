"""nvidia-modelopt, where it is installed: what its offers say, sentence by sentence, and nothing else."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from quantaudit.backends import load_backend
from quantaudit.backends import modelopt_backend as m
from quantaudit.core.errors import MissingLibraryError
from quantaudit.core.format import E2M1, E4M3
from quantaudit.core.scheme import Tie
from quantaudit.numerics import get_scheme
from quantaudit.numerics.ladder import ElementRule
from quantaudit.numerics.rounding import decode, encode
from tests.backends.parting import DTYPES, Parting, agrees, assert_clear, every_matrix, part, rows_of, weights
from tests.numerics.bits import bits

BACKEND = load_backend("modelopt")
IS_INSTALLED = find_spec("modelopt") is not None
needs_modelopt = pytest.mark.skipif(not IS_INSTALLED, reason="nvidia-modelopt is not installed, so it was not checked")
# It warns of GPU kernels that it cannot build, and of what it finds installed.
quiet = pytest.mark.filterwarnings("ignore")
FP8 = ["fp8-tensor", "fp8-channel", "fp8-block128"]
MXFP4 = get_scheme("mxfp4-rceil-zero")
TESTED = {
    *(m.ALL_ZEROS_NEGATIVE, m.LOGARITHM, m.NOT_NAN, m.ORDER, m.ZERO_BLOCK, m.NO_NEGATIVE_ZERO, m.ZERO_MATRIX),
    *(m.NVFP4_SPECIAL, m.MULTIPLIER, m.ZERO_GROUP, m.INT4_SPECIAL, m.DIVIDES_BY_ZERO, m.FP8_SPECIAL),
}


def test_every_sentence_has_a_test() -> None:
    assert TESTED == {sentence for offer in BACKEND.schemes().values() for sentence in offer.departs}


@pytest.mark.skipif(IS_INSTALLED, reason="nvidia-modelopt is installed")
def test_without_the_library_nothing_was_checked() -> None:
    for act in (lambda: BACKEND.version, lambda: BACKEND.quantize(weights(2), "mxfp4")):
        with pytest.raises(MissingLibraryError, match=r"nvidia-modelopt is not installed.*quantaudit\[modelopt\]"):
            act()


def fake(name: str, *rows: list[float]) -> Tensor:
    """Returns what groups of 128 that start like this become."""
    return BACKEND.dequantize(BACKEND.quantize(rows_of(128, *rows), name))


@quiet
@needs_modelopt
@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_departs_only_where_it_says(dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        is_zero_GN = p.their_codes_GN == 8
        only_signs_G = ~(p.scales_G | p.values_GN.any(-1)) & (~p.codes_GN | is_zero_GN).all(-1)
        return ~p.absmax_G.isfinite() | only_signs_G

    assert_clear(BACKEND, "mxfp4", MXFP4, dtype, special)


@quiet
@needs_modelopt
def test_mxfp4_writes_positive_zeros_as_negative_ones() -> None:
    assert BACKEND.quantize(rows_of(32, [6.0, 0.0, -0.0, 0.1, -0.1]), "mxfp4").codes[0, :5].tolist() == [7, 8, 8, 0, 8]


@quiet
@needs_modelopt
def test_mxfp4_takes_a_float_logarithm() -> None:
    p = part(BACKEND, "mxfp4", rows_of(32, *([6 * 2.0**k * (1 + 2.0**-22)] for k in (40, -40))), MXFP4)
    assert p.scales_G.all() and p.their_scales_G.tolist() == [167, 87]


@quiet
@needs_modelopt
def test_mxfp4_makes_special_groups_zero() -> None:
    q = BACKEND.quantize(rows_of(32, [math.inf, 1], [-math.inf, 3], [1, math.nan]), "mxfp4")
    assert (q.scales == 0).all() and (BACKEND.dequantize(q) == 0).all()


def restate_nvfp4(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns block scales, codes and fp32 values of a matrix that is finite and not zero, by what is stated."""
    groups_RGN = x.float().view(len(x), -1, 16)
    absmax_RG = groups_RGN.abs().amax(-1)
    top = x.float().abs().max() / (6 * 448)
    computed_RG = absmax_RG / (6 * top)
    computed_RG = torch.where(computed_RG == 0, 1.0, computed_RG)
    block_RG = computed_RG.clamp(2.0**-9, 448).to(torch.float8_e4m3fn)
    complete_RG1 = (block_RG.float() * top).unsqueeze(-1)
    codes_RGN = encode(groups_RGN / complete_RG1, ElementRule(E2M1, Tie.EVEN))
    values_RGN = decode(codes_RGN, E2M1) * complete_RG1
    return block_RG.view(torch.uint8), codes_RGN.view_as(x), values_RGN.view_as(x)


@quiet
@needs_modelopt
@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_is_what_its_sentences_say(dtype: torch.dtype) -> None:
    for x in every_matrix(dtype):
        # Below, the upper scale is a subnormal number, and what is divided by it overflows.
        if not x.isfinite().all() or x.float().abs().max() < 2.0**-110:
            continue
        q = BACKEND.quantize(x, "nvfp4")
        scales, codes, values = restate_nvfp4(x)
        assert torch.equal(q.scales, scales)
        is_zero = (codes & 7) == 0
        assert torch.equal(torch.where(is_zero, q.codes & 7, q.codes), torch.where(is_zero, 0, codes))
        assert torch.equal(BACKEND.dequantize(q) + 0.0, values.to(dtype) + 0.0)


@quiet
@needs_modelopt
@pytest.mark.parametrize(("largest", "is_on_borders"), [(0.3046875, True), (0.28125, False)])
def test_nvfp4_is_its_scheme_but_for_the_order_of_two_divisions(largest: float, is_on_borders: bool) -> None:
    maxima = torch.arange(1, 1 << 7).float() / (1 << 7) * largest
    x = rows_of(16, [largest, largest / 3], *([m, m / 3, -m / 5] for m in maxima.bfloat16().tolist())).bfloat16()
    p = part(BACKEND, "nvfp4", x, get_scheme("nvfp4-divide"))
    top = torch.tensor(largest) / (6 * 448)
    once, twice = ((s.clamp(2.0**-9, 448)).to(torch.float8_e4m3fn).float() for s in _orders(p.absmax_G, top))
    assert torch.equal(p.scales_G, once != twice) and bool(p.scales_G.any()) is is_on_borders
    assert not p.values_GN[~p.scales_G].any()
    assert (p.their_codes_GN[p.codes_GN & ~p.scales_G.unsqueeze(1)] == 0).all()  # the sign of what vanishes


def _orders(absmax_G: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Returns block scales by one division, and by two."""
    return absmax_G / (6 * top), (absmax_G / 6) / top


@quiet
@needs_modelopt
def test_nvfp4_of_weights_is_that_of_others_but_for_borders() -> None:
    p = part(BACKEND, "nvfp4", weights(1000), get_scheme("nvfp4"))
    small_G = p.absmax_G < p.absmax_G.max() / 448 / 64
    assert not p.scales_G[~small_G].any() and p.codes_GN[~small_G].float().mean() < 1e-4


@quiet
@needs_modelopt
def test_nvfp4_has_a_scale_for_zero_blocks() -> None:
    x = rows_of(16, [1.0], [2.0**-15], [2.0**-30], [0.0])
    assert decode(BACKEND.quantize(x, "nvfp4").scales, E4M3).flatten().tolist() == [448, 7 * 2.0**-9, 2.0**-9, 1]


@quiet
@needs_modelopt
def test_nvfp4_zeros_have_no_sign_and_zero_matrices_are_nan() -> None:
    assert BACKEND.quantize(rows_of(16, [1.0, -0.0]), "nvfp4").codes[0, :2].tolist() == [7, 0]
    assert BACKEND.dequantize(BACKEND.quantize(torch.zeros(2, 16), "nvfp4")).isnan().all()


@quiet
@needs_modelopt
def test_nvfp4_matrices_with_special_numbers_are_nan_with_other_codes() -> None:
    for number in (math.inf, math.nan):
        p = part(BACKEND, "nvfp4", rows_of(32, [1.0, number], [2.0]), get_scheme("nvfp4"))
        assert (p.scales_G.any() or p.codes_GN.any()) and not p.values_GN.any()


@quiet
@needs_modelopt
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["int4-g32", "int4-g128"])
def test_int4_is_what_its_sentences_say(name: str, dtype: torch.dtype) -> None:
    size = int(name.removeprefix("int4-g"))
    for x in every_matrix(dtype):
        groups_GN = x.view(-1, size)
        multiplier_G1 = 7 / groups_GN.abs().amax(-1, keepdim=True)
        usable_G = (multiplier_G1.isfinite() & (multiplier_G1 > 0)).squeeze(1)
        codes_GN = (groups_GN * multiplier_G1).round().clamp(-8, 7)
        q = BACKEND.quantize(x, name)
        values_GN = BACKEND.dequantize(q).view(-1, size)
        assert torch.equal(q.codes.view(-1, size)[usable_G].float(), codes_GN[usable_G].float())
        expected_GN = (codes_GN.long() / multiplier_G1)[usable_G].to(dtype)
        assert torch.equal(bits(values_GN[usable_G] + 0), bits(expected_GN + 0))
        assert torch.equal(bits(q.scales.flatten()[usable_G]), bits(1 / multiplier_G1.float().squeeze(1)[usable_G]))


@quiet
@needs_modelopt
def test_int4_groups_without_a_multiplier_decode_to_zero() -> None:
    q = BACKEND.quantize(rows_of(32, [0.0], [1e-38, -1e-39]), "int4-g32")
    assert q.codes.any(-1).all() and (BACKEND.dequantize(q) == 0).all()


@quiet
@needs_modelopt
def test_int4_special_groups() -> None:
    q = BACKEND.quantize(rows_of(32, [math.inf, 1.0], [1.0, math.nan]), "int4-g32")
    values = BACKEND.dequantize(q)
    assert isinstance(q, m.Inverted) and q.multipliers[0, 0] == 0 and q.scales[0, 0] == math.inf
    assert (~values.isfinite()).all() and q.codes[1].any()


@quiet
@needs_modelopt
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FP8)
def test_fp8_is_what_its_sentences_say(name: str, dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        return ~p.absmax_G.isfinite() | (p.their_scales_G == 0)

    assert_clear(BACKEND, name, get_scheme(f"{name}-native"), dtype, special)
    x = weights(128).to(dtype)
    assert bool(part(BACKEND, name, x, get_scheme(name)).anywhere_G.any()) is (dtype == torch.bfloat16)


@quiet
@needs_modelopt
@pytest.mark.parametrize("name", FP8)
def test_fp8_divides_by_a_scale_of_zero(name: str) -> None:
    values = fake(name, [2.0**-149])
    assert values[0, 0] == 0 and values[0, 1:].isnan().all()


@quiet
@needs_modelopt
@pytest.mark.parametrize("name", FP8)
def test_fp8_special_groups(name: str) -> None:
    for number in (math.inf, math.nan):
        p = part(BACKEND, name, rows_of(128, [number, 1.0]), get_scheme(f"{name}-native"))
        assert p.codes_GN.any() and not p.values_GN.any()
        assert bool(p.their_scales_G.isinf().all()) is math.isinf(number)


@quiet
@needs_modelopt
def test_mxfp4_ties_go_toward_zero() -> None:
    ties = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    assert fake("mxfp4", ties)[0, :8].tolist() == [6, 0, 0.5, 1, 1.5, 2, 3, 4]
    seven = BACKEND.quantize(rows_of(32, [7.0]), "mxfp4")
    assert seven.scales.tolist() == [[128]] and BACKEND.dequantize(seven)[0, 0] == 6


@quiet
@needs_modelopt
@pytest.mark.parametrize("name", list(m.OFFERS))
def test_a_stack_is_its_matrices(name: str) -> None:
    x = weights(6).view(2, 3, 256)
    q, second = BACKEND.quantize(x, name), BACKEND.quantize(x[1], name)
    assert torch.equal(q.codes[1], second.codes) and torch.equal(q.scales[1], second.scales)
    assert torch.equal(BACKEND.dequantize(q)[1], BACKEND.dequantize(second))


@quiet
@needs_modelopt
def test_mxfp4_fractions_of_bf16_weights_are_those_on_record() -> None:
    p = part(BACKEND, "mxfp4", weights(4000).bfloat16(), get_scheme("mxfp4-rceil"))
    assert not p.scales_G.any() and agrees(p.values_GN, 0.00487, 1e-5)
