"""compressed-tensors: what its offers say, sentence by sentence, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1, E4M3
from quantaudit.core.scheme import Arithmetic, Layout, Scheme, Tie
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, pack, quantize
from quantaudit.numerics.ladder import ElementRule
from quantaudit.numerics.rounding import decode, encode
from tests.backends.parting import DTYPES, Parting, agrees, assert_clear, changed, every_matrix, part, rows_of, weights
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import ties

pytest.importorskip("compressed_tensors")
from quantaudit.backends import compressed_tensors_backend as ct  # noqa: E402

BACKEND = ct.BACKEND
INTEGERS, FP8 = ["int4-g32", "int4-g128"], ["fp8-tensor", "fp8-channel", "fp8-block128"]
EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
TESTED = {
    *(ct.ZERO_SCALE, ct.INFINITE_SCALE, ct.SPECIAL_CODES, ct.NEGATIVE_ZERO),
    *(ct.BF16_VALUES, ct.LAST_BINADE, ct.FINITE, ct.FINITE_FP8),
    *(ct.RECIPROCAL_TOP, ct.BF16_SCALES, ct.NO_FLOOR, ct.TOP_OF_ONE, ct.NAN_BLOCK, ct.INFINITE_TOP),
}


def stated(name: str, dtype: torch.dtype) -> Scheme:
    """Returns the scheme of an offer for integers or FP8, with the epsilon that the sentence on zero scales states."""
    return changed(BACKEND.schemes()[name].catalogue, scale={"zero_scale": EPSILON[dtype]})


def mx(name: str) -> Scheme:
    """Returns the scheme of an MX offer."""
    return get_scheme(BACKEND.schemes()[name].catalogue)


def only_signs(p: Parting) -> Tensor:
    """Names groups that part in nothing but codes of +0 in the place of -0."""
    parted_GN = p.codes_GN & ~((p.their_codes_GN == 0) & (p.groups_GN.signbit()))
    return ~(p.scales_G | parted_GN.any(-1) | p.values_GN.any(-1))


def test_every_sentence_has_a_test() -> None:
    assert TESTED == {sentence for offer in BACKEND.schemes().values() for sentence in offer.departs}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_what_their_sentences_say(name: str, dtype: torch.dtype) -> None:
    assert_clear(BACKEND, name, stated(name, dtype), dtype, lambda p: p.absmax_G.isinf())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FP8)
def test_fp8_is_what_its_sentences_say(name: str, dtype: torch.dtype) -> None:
    assert_clear(
        BACKEND,
        name,
        stated(name, dtype),
        dtype,
        lambda p: ~p.absmax_G.isfinite() | only_signs(p),
    )


@pytest.mark.parametrize("name", [*INTEGERS, *FP8])
def test_integers_and_fp8_divide_in_the_dtype_of_the_weight(name: str) -> None:
    native = get_scheme(BACKEND.schemes()[name].catalogue)
    plain = get_scheme(native.name.removesuffix("-native"))
    x = weights(128)
    assert not part(BACKEND, name, x, plain).anywhere_G.any()
    x = x.bfloat16()
    assert not part(BACKEND, name, x, native).anywhere_G.any() or name in FP8
    assert part(BACKEND, name, x, plain).values_GN.any()
    assert part(BACKEND, name, x, native.model_copy(update={"scale": plain.scale})).scales_G.any()
    assert part(BACKEND, name, x, native.model_copy(update={"arithmetic": Arithmetic.FLOAT32})).codes_GN.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*INTEGERS, *FP8])
def test_integers_and_fp8_decode_in_the_dtype_of_the_weight(name: str, dtype: torch.dtype) -> None:
    assert BACKEND.dequantize(BACKEND.quantize(weights(2).to(dtype), name)).dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*INTEGERS, *FP8])
def test_a_scale_of_zero_is_epsilon(name: str, dtype: torch.dtype) -> None:
    x = torch.zeros(2, 128, dtype=dtype)
    x[1, 0] = 2.0**-149 if dtype == torch.float32 else 2.0**-133
    q = BACKEND.quantize(x, name)
    assert (q.scales == EPSILON[dtype]).all() and (BACKEND.dequantize(q) == 0).all()


@pytest.mark.parametrize("name", [*INTEGERS, *FP8])
def test_an_infinity_has_an_infinite_scale(name: str) -> None:
    p = part(BACKEND, name, rows_of(128, [math.inf, 1], [-math.inf, 2]), stated(name, torch.float32))
    assert torch.equal(p.their_scales_G.isinf(), p.absmax_G.isinf()) and torch.equal(p.scales_G, p.absmax_G.isinf())
    assert not p.values_GN.any()


@pytest.mark.parametrize("name", FP8)
def test_fp8_codes_of_special_groups_are_not_zero(name: str) -> None:
    like = stated(name, torch.float32)
    for head in ([math.inf, 1.0], [math.nan, 1.0]):
        p = part(BACKEND, name, rows_of(128, head), like)
        assert p.codes_GN.any() and not p.values_GN.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_mx_is_what_its_sentences_say(name: str, dtype: torch.dtype) -> None:
    def special(p: Parting) -> Tensor:
        return ~p.absmax_G.isfinite() | (p.absmax_G >= 1.75 * 2.0**127) | only_signs(p)

    assert_clear(BACKEND, name, mx(name), dtype, special)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_mx_values_near_the_largest_numbers_become_zero(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    q = BACKEND.quantize(rows_of(32, [1.75 * 2.0**127, 1], [largest, -largest]).to(dtype), name)
    assert (q.scales == 127).all() and (BACKEND.dequantize(q) == 0).all()
    below = rows_of(32, [1.74 * 2.0**127, 2.0**126]).to(dtype)
    assert not part(BACKEND, name, below, mx(name)).anywhere_G.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_mx_makes_special_groups_finite(name: str, dtype: torch.dtype) -> None:
    x = rows_of(32, [math.inf, 1, -2], [math.nan, 1], [2, math.nan, -math.inf]).to(dtype)
    q = BACKEND.quantize(x, name)
    assert set(q.scales.flatten().tolist()) <= {0, 127}
    values = BACKEND.dequantize(q)
    assert torch.equal(values.isnan(), ~x.isfinite() if name == "mxfp8" else torch.zeros_like(x, dtype=torch.bool))
    assert not values.isinf().any()


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", *FP8])
def test_a_ratio_of_negative_zero_loses_its_sign(name: str) -> None:
    x = rows_of(128, [2.0**100, -0.0, -(2.0**-100), 1.0])
    assert BACKEND.quantize(x, name).codes[0, 1:3].tolist() == [0, 0]
    like = get_scheme(BACKEND.schemes()[name].catalogue)
    assert quantize(x, like).codes[0, 1:3].tolist() == [like.element.sign_code] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "nvfp4"])
def test_values_of_four_bits_and_mx_decode_to_bf16(name: str) -> None:
    assert BACKEND.dequantize(BACKEND.quantize(weights(2), name)).dtype == torch.bfloat16


def test_mxfp8_scales_part_from_the_smallest_ones_at_a_fraction_of_1_75() -> None:
    rceil = get_scheme("mxfp8-e4m3-rceil")
    maxima = [448.0, 1.75, 1.75 * 2.0**-20, 448 * (1 - 2.0**-23), 448 * (1 + 2.0**-22), 1.5, 1.9]
    p = part(BACKEND, "mxfp8", rows_of(32, *([m, m / 3] for m in maxima)), rceil)
    assert p.scales_G.tolist() == [True, True, True, False, False, False, False]
    assert not p.values_GN.any()
    for dtype in DTYPES:
        assert_clear(
            BACKEND,
            "mxfp8",
            rceil,
            dtype,
            lambda q: (
                ~q.absmax_G.isfinite()
                | (q.absmax_G >= 1.75 * 2.0**127)
                | (torch.frexp(q.absmax_G).mantissa == 0.875)
                | only_signs(q)
            ),
        )


def restate_nvfp4(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns block scales as E4M3 codes, codes and bf16 values of a finite matrix, by what the sentences state."""
    groups_RGN = x.view(len(x), -1, 16)
    absmax_RG = groups_RGN.abs().amax(-1)
    top = (2688 / x.abs().max().clamp(min=2.0**-126)).float().nan_to_num(posinf=1.0)
    chosen_RG = (top * (absmax_RG / 6).float()).clamp(max=448).to(torch.float8_e4m3fn)
    block_RG = torch.where(chosen_RG.float() == 0, 0.125, chosen_RG.float())
    complete_RG1 = (block_RG / top).unsqueeze(-1)
    codes_RGN = encode(groups_RGN.float() / complete_RG1, ElementRule(E2M1, Tie.EVEN))
    values_RGN = (decode(codes_RGN, E2M1) * complete_RG1).bfloat16()
    return block_RG.to(torch.float8_e4m3fn).view(torch.uint8), codes_RGN.view_as(x), values_RGN.view_as(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_is_what_its_sentences_say(dtype: torch.dtype) -> None:
    for x in every_matrix(dtype):
        if not x.isfinite().all():
            continue
        q = BACKEND.quantize(x, "nvfp4")
        scales, codes, values = restate_nvfp4(x)
        assert torch.equal(q.scales, scales)
        is_zero = (codes & 7) == 0
        assert torch.equal(torch.where(is_zero, q.codes & 7, q.codes), torch.where(is_zero, 0, codes))
        assert torch.equal(BACKEND.dequantize(q) + 0.0, values + 0.0)


def test_nvfp4_departs_on_rounding_borders_of_the_scale_only() -> None:
    nvfp4 = get_scheme("nvfp4")
    p = part(BACKEND, "nvfp4", weights(4000), nvfp4)
    assert not p.scales_G.any() and not p.codes_GN.any()
    assert part(BACKEND, "nvfp4", ties(), nvfp4).scales_G.any()
    stored = BACKEND.quantize(weights(2), "nvfp4")
    assert isinstance(stored, ct.Compressed) and stored.second_scales is not None
    assert_same_bits(stored.second_scales, 1 / stored.global_scale)


def test_nvfp4_rounds_both_scales_of_bf16_weights() -> None:
    x = rows_of(16, [3.015625], [1.0078125]).bfloat16()
    q = BACKEND.quantize(x, "nvfp4")
    assert isinstance(q, ct.Compressed)
    top = 2688 / 3.015625
    assert q.global_scale.tolist() == [torch.tensor(top).bfloat16().float().item()] != [torch.tensor(top).item()]
    p = part(BACKEND, "nvfp4", weights(1000).bfloat16(), get_scheme("nvfp4"))
    assert p.scales_G.any() and not p.scales_G.all()


def test_nvfp4_keeps_small_block_scales() -> None:
    x = rows_of(16, [1.0], [2.0**-15, -(2.0**-16)], [2.0**-18])
    p = part(BACKEND, "nvfp4", x, get_scheme("nvfp4"))
    assert p.their_scales_G.tolist() == [126, 7, 1] and p.scales_G.tolist() == [False, True, True]
    zero_block = BACKEND.quantize(torch.cat([torch.ones(1, 16), torch.zeros(1, 16)], -1), "nvfp4")
    assert decode(zero_block.scales, E4M3).flatten().tolist() == [448, 0.125]


def test_nvfp4_gives_tiny_and_zero_matrices_an_upper_scale_of_one() -> None:
    for head in ([0.0], [2.0**-120, 2.0**-121], [7.8e-36]):
        q = BACKEND.quantize(rows_of(16, head), "nvfp4")
        assert q.second_scales is not None and q.second_scales.tolist() == [1.0]
        assert (BACKEND.dequantize(q) == 0).all()
    assert BACKEND.dequantize(BACKEND.quantize(rows_of(16, [8e-36]), "nvfp4"))[0, 0] > 0


def test_nvfp4_keeps_a_nan_in_its_block_and_an_infinity_in_its_matrix() -> None:
    x = rows_of(48, [1.0] * 16 + [math.nan] + [2.0] * 15)
    q = BACKEND.quantize(x, "nvfp4")
    values = BACKEND.dequantize(q)[0]
    assert q.second_scales is not None and q.second_scales.tolist() == [1.0]
    assert values[16:32].isnan().all() and values[:16].isfinite().all() and values[32:].isfinite().all()
    infinite = BACKEND.quantize(rows_of(32, [1.0] * 16 + [math.inf]), "nvfp4")
    assert not decode(infinite.scales, E4M3).isnan().all() and BACKEND.dequantize(infinite).isnan().all()


@pytest.mark.parametrize(
    ("name", "dtype", "figure"),
    [
        ("int4-g32", torch.float32, 0.00278),
        ("int4-g32", torch.bfloat16, 0.00600),
        ("int4-g128", torch.float32, 0.00074),
        ("int4-g128", torch.bfloat16, 0.00328),
    ],
)
def test_int4_against_the_reciprocal_of_torchao_is_on_record(name: str, dtype: torch.dtype, figure: float) -> None:
    x = weights(8000).to(dtype)
    p = part(BACKEND, name, x, get_scheme(f"{name}-div7.5-recip-native"))
    assert agrees(p.values_GN, figure, 1e-5)


def test_the_largest_weight_of_a_group_may_get_another_code_than_with_a_reciprocal() -> None:
    x = rows_of(32, [-2.6133224964141846])
    assert BACKEND.quantize(x, "int4-g32").codes[0, 0] == -8
    x = rows_of(32, [0.00604248 * 7.5, 0.0332031]).bfloat16()
    assert BACKEND.quantize(x, "int4-g32").codes[0, 1] == 6


def test_a_tensor_that_the_plain_scheme_made_is_decoded_too() -> None:
    x = weights(4)
    for name in ("int4-g32-div7.5", "int4-g128-div7", "fp8-channel", "nvfp4"):
        plain = quantize(x, get_scheme(name))
        values = BACKEND.dequantize(plain)
        assert ((values - dequantize(plain, values.dtype)).abs() <= 2.0**-7 * x.abs().max()).all()


def test_codes_lie_in_a_file_as_the_catalogue_packs_them() -> None:
    codes = torch.tensor([[-8, -7, -6, -5, -4, -3, -2, 7]], dtype=torch.int8)
    assert int(pack(codes, Layout.INT32_WORDS)) & 0xFFFFFFFF == 0xF6543210
    assert pack(torch.tensor([[1, 2]], dtype=torch.uint8), Layout.LOW_NIBBLE_FIRST).tolist() == [[0x21]]


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_every_mx_code_under_every_scale_decodes_exactly_but_for_the_nan_scale(name: str) -> None:
    scheme = get_scheme(BACKEND.schemes()[name].catalogue)
    count = 1 << scheme.element.bits
    codes = torch.arange(count, dtype=torch.uint8).repeat(256, 32 * 8 // count)
    every = QuantizedTensor(
        codes=codes,
        scales=torch.arange(256, dtype=torch.uint8).unsqueeze(1).expand(256, 8).contiguous(),
        second_scales=None,
        offset=None,
        shape=(256, 256),
        dtype=torch.bfloat16,
        scheme=scheme,
    )
    theirs, ours = BACKEND.dequantize(every), dequantize(every)
    differs = (theirs != ours) & ~(theirs.isnan() & ours.isnan())
    assert differs.any(1).nonzero().flatten().tolist() == [255]


@pytest.mark.parametrize("name", list(ct.OFFERS))
def test_a_stack_is_its_matrices(name: str) -> None:
    x = weights(6).view(2, 3, 256)
    q, second = BACKEND.quantize(x, name), BACKEND.quantize(x[1], name)
    assert torch.equal(q.codes[1], second.codes) and torch.equal(q.scales[1], second.scales)
    assert torch.equal(BACKEND.dequantize(q)[1], BACKEND.dequantize(second))


def test_partial_fp8_blocks_are_quantized() -> None:
    x = weights(130, 200)
    assert not part(BACKEND, "fp8-block128", x, get_scheme("fp8-block128")).anywhere_G.any()


def test_columns_that_groups_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        BACKEND.quantize(torch.zeros(2, 48), "int4-g32")
    with pytest.raises(InputError, match="did you mean mxfp"):
        BACKEND.quantize(torch.zeros(2, 64), "mxfp")


@pytest.mark.parametrize(
    ("scheme", "scales", "values"),
    [("mxfp4-floor", 0.1941, 0.0528), ("mxfp4-rceil", 0.2191, 0.0570), ("mxfp4-ceil", 0.7976, 0.2441)],
)
def test_mxfp4_parts_from_other_scale_rules_as_on_record(scheme: str, scales: float, values: float) -> None:
    p = part(BACKEND, "mxfp4", weights(4000).bfloat16(), get_scheme(scheme))
    assert agrees(p.scales_G.unsqueeze(1), scales, 1e-4, num_stated=32_000)
    assert agrees(p.values_GN, values, 1e-4)
