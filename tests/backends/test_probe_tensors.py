"""The probe tensors P1 to P18: the smallest inputs on which public quantizers part, with their exact outputs.

Each is run through what it speaks of: a catalogue scheme, a library, or a restated convention. Numbers are compared
exactly; strings are decimals as published, and are compared to as many digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import Tensor
from torchao.quantization.quant_primitives import quantize_affine

from quantaudit.backends import load_backend
from quantaudit.core.errors import MissingLibraryError
from quantaudit.core.format import E4M3
from quantaudit.core.recipe import Rule
from quantaudit.core.scheme import Division, ExponentRounding, Layout, Overflow, Scheme, Tie
from quantaudit.identity.mismatches import cut_groups, permuted_experts, shared_scale, transposed_weights
from quantaudit.identity.mismatches.exponent_from_ratio import with_exponent_of_ratio
from quantaudit.identity.mismatches.protocol import Projection, Weight
from quantaudit.identity.mismatches.split_blocks import read_as_halves, read_as_neighbours
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.model.moe import select_experts
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, pack, quantize, unpack
from quantaudit.numerics.ladder import ElementRule
from quantaudit.numerics.rounding import decode, encode

BF16, FP32 = torch.bfloat16, torch.float32
F32 = np.float32


def filled(head: list[float], size: int, dtype: torch.dtype = FP32) -> Tensor:
    """Returns a row of one group: what is given, then zeros."""
    return torch.tensor([head + [0.0] * (size - len(head))]).to(dtype)


def changed(name: str, **fields: object) -> Scheme:
    """Returns a catalogue scheme with another scale rule."""
    scheme = get_scheme(name)
    return scheme.model_copy(update={"scale": scheme.scale.model_copy(update=fields)})


def values_of(quantizer: str | Scheme, head: list[float], dtype: torch.dtype = FP32) -> list[float]:
    """Returns what a scheme, or `backend:name`, makes of the head of a group."""
    if isinstance(quantizer, str) and ":" in quantizer:
        library, name = quantizer.split(":")
        x = filled(head, 128 if "fp8" in name else 32, dtype)
        if "block" in name:
            x = torch.cat((x, torch.zeros(127, 128, dtype=dtype)))
        backend = load_backend(library)
        try:
            decoded = backend.dequantize(backend.quantize(x, name))
        except MissingLibraryError as error:
            pytest.skip(str(error))
    else:
        scheme = get_scheme(quantizer) if isinstance(quantizer, str) else quantizer
        decoded = fake_quantize(filled(head, 128, dtype), scheme)
    found: list[float] = decoded[0, : len(head)].float().tolist()
    return found


def codes_of(quantizer: str, head: list[float], dtype: torch.dtype) -> list[int]:
    """Returns the codes that `backend:name` gives the head of a group."""
    library, name = quantizer.split(":")
    codes: list[int] = load_backend(library).quantize(filled(head, 32, dtype), name).codes[0, : len(head)].tolist()
    return codes


def agree(published: Sequence[float | str], found: Sequence[float]) -> bool:
    """Whether these are the numbers, or round to the decimals, that were published."""
    assert len(published) == len(found)
    return all(
        abs(Decimal(p) - Decimal(f)) <= Decimal((0, (5,), _last_digit(p) - 1)) if isinstance(p, str) else p == f
        for p, f in zip(published, found, strict=True)
    )


def _last_digit(decimal: str) -> int:
    exponent = Decimal(decimal).as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


NEAREST_FP4 = changed("mxfp4-floor", rounding=ExponentRounding.NEAREST)
NEAREST_FP8 = changed("fp8-channel-ue8m0", rounding=ExponentRounding.NEAREST)
FLOOR_FP8 = changed("fp8-channel-ue8m0", rounding=ExponentRounding.FLOOR)
FLOORS = ["mxfp4-floor", "torchao:mxfp4-floor", "gguf:mxfp4", "conventions:ocp-mxfp4", "conventions:triton-mxfp4-down"]
EVENS = ["mxfp4-even", "torchao:mxfp4-even", "compressed-tensors:mxfp4", "conventions:quark-mxfp4-even"]
CEILS = [
    "mxfp4-ceil",
    "mxfp4-rceil",
    "torchao:mxfp4-ceil",
    "torchao:mxfp4-rceil",
    "torchao-qat:mxfp4-rceil",
    "conventions:triton-mxfp4-up",
]
P1_HEADS = ([7.0, 0.3, 1.0], [6.5, 0.3, 1.0], [3.5, 0.3])
P1_LOW = ([6.0, 0.5, 1.0], [6.0, 0.5, 1.0], [3.0, 0.25])
P1_EVEN = ([8.0, 0.0, 1.0], [6.0, 0.5, 1.0], [4.0, 0.5])
P1_HIGH = ([8.0, 0.0, 1.0], [6.0, 0.0, 1.0], [4.0, 0.5])
P1 = [
    *((q, P1_LOW) for q in (*FLOORS, NEAREST_FP4)),
    *((q, P1_EVEN) for q in EVENS),
    *((q, P1_HIGH) for q in CEILS),
]


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("quantizer", "expected"), P1, ids=[str(getattr(q, "name", q)) for q, _ in P1])
def test_p1_scale_rules_of_mxfp4(
    quantizer: str | Scheme, expected: tuple[list[float], ...], dtype: torch.dtype
) -> None:
    assert tuple(values_of(quantizer, head, dtype) for head in P1_HEADS) == expected


def test_p1_exponent_of_the_ratio() -> None:
    wrong = with_exponent_of_ratio(get_scheme("mxfp4-floor"))
    assert wrong is not None
    assert [values_of(wrong, head) for head in ([2.7, 0.2], [5.5, 0.3])] == [[1.5, 0.25], [3.0, 0.25]]
    assert [values_of("mxfp4-floor", head) for head in ([2.7, 0.2], [5.5, 0.3])] == [[3.0, 0.25], [6.0, 0.5]]


@pytest.mark.parametrize(
    ("quantizer", "ones", "hundreds"),
    [
        ("fp8-block128", [1.0, "0.2857"], [500.0, "98.21"]),
        ("conventions:deepseek-v3-fp8-block128", [1.0, "0.2857"], [500.0, "98.21"]),
        ("conventions:slime-fp8-block128", [1.0, "0.2857"], [500.0, "98.21"]),
        ("torchao:fp8-block128", [1.0, "0.2857"], [500.0, "98.21"]),
        (FLOOR_FP8, [1.0, 0.3125], [448.0, 96.0]),
        ("mxfp8-e4m3-floor", [1.0, 0.3125], [448.0, 96.0]),
        ("fp8-block128-ue8m0", [1.0, 0.3125], [512.0, 96.0]),
        ("conventions:deepseek-v4-fp8-block128-ue8m0", [1.0, 0.3125], [512.0, 96.0]),
        ("transformers:fp8-block128-ue8m0", [1.0, 0.3125], [512.0, 96.0]),
        (NEAREST_FP8, [0.875, 0.3125], None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_p2_scales_of_fp8(quantizer: str | Scheme, ones: list[float | str], hundreds: list[float | str] | None) -> None:
    assert agree(ones, values_of(quantizer, [1.0, 0.3]))
    assert hundreds is None or agree(hundreds, values_of(quantizer, [500.0, 100.0]))


@pytest.mark.parametrize("num_rows", [1, 128], ids=["one token (P4)", "a weight block (P3)"])
def test_p3_p4_elements_divided_by_the_unrounded_scale(num_rows: int) -> None:
    backend = load_backend("conventions")
    x = filled([1.0, 0.3], 128).expand(num_rows, 128)
    late, right = (
        backend.dequantize(backend.quantize(x, f"{side}-fp8-block128-ue8m0"))[0, :2].tolist()
        for side in ("late", "deepseek-v4")
    )
    assert (late, right) == ([1.75, 0.5], [1.0, 0.3125])


def test_p5_floors_of_fp8() -> None:
    head = [1e-5, 3e-6]
    assert agree(["9.82e-6", "2.90e-6"], values_of("conventions:deepseek-v4-fp8-block128", head))
    assert agree(["1.000e-5", "2.857e-6"], values_of("conventions:slime-fp8-block128", head))


def test_p5_floors_of_int4() -> None:
    head = [5e-5, 3e-5]
    assert codes_of("conventions:slime-int4-g32-train", head, BF16) == [5, 3]
    assert codes_of("conventions:skyrl-int4-g32-div7", head, BF16) == [7, 4]
    assert agree(["2.861e-5"], values_of("int4-g32-div7", head, BF16)[1:])
    small = [4e-6, 2.4e-6]
    assert codes_of("conventions:slime-int4-g32-train", small, BF16) == [0, 0]
    assert codes_of("conventions:skyrl-int4-g32-div7", small, BF16) == [7, 4]


def test_p6_division_and_reciprocal() -> None:
    for divisor in (448, 7):
        inverse = F32(1) / F32(divisor)
        assert sum(F32(i) * inverse != F32(i) / F32(divisor) for i in range(1, 400)) == 218
    assert F32(3) * (F32(1) / F32(448)) != F32(3) / F32(448)
    head = [3.0, 0.64285713]
    by_division = get_scheme("int4-g32-div7")
    by_reciprocal = by_division.model_copy(update={"division": Division.RECIPROCAL})
    assert [int(quantize(filled(head, 32), s).codes[0, 1]) for s in (by_division, by_reciprocal)] == [2, 1]
    assert codes_of("torchao:int4-g32-no-clipping", head, FP32)[1] == 1


@pytest.mark.parametrize("head", [[3.0, 1.5], [6.0, 3.0], [0.75, 0.375], [12.0, 6.0]])
def test_p7_codes_of_trainer_and_packer(head: list[float]) -> None:
    assert codes_of("conventions:slime-int4-g32-train", head, BF16) == [7, 4]
    assert codes_of("conventions:slime-int4-g32-pack", head, BF16) == [7, 3]


def test_p7_values_of_trainer_and_packer() -> None:
    assert agree([3.0, "1.7109"], values_of("conventions:slime-int4-g32-train", [3.0, 1.5], BF16))
    assert values_of("conventions:slime-int4-g32-pack", [3.0, 1.5], BF16) == [3.0, 1.28125]


def test_p7_scales_of_fp32_and_bf16() -> None:
    for quantizer, code, value in (("slime-int4-g32-train", 3, "0.4277"), ("skyrl-int4-g32-div7", 4, "0.5703")):
        assert codes_of(f"conventions:{quantizer}", [1.0, 0.5], BF16)[1] == code
        assert agree([value], values_of(f"conventions:{quantizer}", [1.0, 0.5], BF16)[1:])


def test_p7_both_conventions_of_one_trainer() -> None:
    head = [1.0, 0.5, -0.25, 0.1]
    by_7, by_7_5 = (values_of(f"conventions:skyrl-int4-g32-div{d}", head, BF16) for d in ("7", "7.5"))
    assert agree([1.0, "0.5703", "-0.2852", "0.1426"], by_7)
    assert agree([0.9375, "0.5352", "-0.2676", "0.1338"], by_7_5)
    assert by_7_5 == values_of("compressed-tensors:int4-g32", head, BF16)


def test_p8_source_in_bf16_and_in_fp32() -> None:
    scheme = get_scheme("fp8-tensor-ue8m0")
    head = [1.0, 0.7827253]
    assert values_of(scheme, head)[1] == 0.8125
    assert values_of(scheme, head, BF16)[1] == 0.75
    x = torch.rand(1 << 18) / 2 + 0.5
    x[0] = 1.0
    flips = (fake_quantize(x[None], scheme) != fake_quantize(x[None].bfloat16(), scheme).float()).float().mean()
    # bf16 rounds 1/256 of numbers onto every tie, 1/16 apart, and half of these leave their code: 1/32.
    assert abs(float(flips) - 1 / 32) < 2.576 * (1 / 32 / len(x)) ** 0.5  # 99 % binomial


def test_p9_zero_point_before_and_after_rounding() -> None:
    one = torch.tensor([1.0])
    after = quantize_affine(torch.tensor([[2.5]]), (1, 1), one, torch.tensor([1]), torch.int8, -8, 7)
    assert after.item() == 3  # torchao: round(x / s) + z
    compressed = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    arguments = compressed.QuantizationArgs(num_bits=4, symmetric=False, strategy="tensor")
    before = forward.quantize(torch.tensor([[2.5]]), one, torch.tensor([1], dtype=torch.int8), arguments)
    assert before.item() == 4  # compressed-tensors: round(x / s + z)


@pytest.mark.parametrize(
    ("quantizer", "expected"),
    [
        ("mxfp4-floor", [0.0, 1.0, 2.0, 4.0]),
        ("torchao:mxfp4-floor", [0.0, 1.0, 2.0, 4.0]),
        ("conventions:triton-mxfp4-up", [0.0, 1.0, 2.0, 4.0]),
        ("conventions:microxcaling-mxfp4-even", [0.0, 1.0, 2.0, 4.0]),
        ("mxfp4-floor-away", [0.5, 1.5, 3.0, 6.0]),
        ("conventions:triton-old-mxfp4-up", [0.5, 1.5, 3.0, 6.0]),
        ("conventions:quark-mxfp4-even", [0.5, 1.5, 3.0, 6.0]),
        ("conventions:microxcaling-mxfp4-nearest", [0.5, 1.5, 3.0, 6.0]),
    ],
)
def test_p10_midpoints_of_e2m1(quantizer: str, expected: list[float]) -> None:
    assert values_of(quantizer, [6.0, 0.25, 1.25, 2.5, 5.0])[1:] == expected
    assert values_of(quantizer, [6.0, 0.75, 1.75, 3.5])[1:] == [1.0, 2.0, 4.0]


def test_p12_bytes_of_two_fp8_flavours() -> None:
    codes = torch.tensor([0x38, 0x7E, 0x7F, 0x80], dtype=torch.uint8)
    ours = decode(codes, E4M3).tolist()
    assert ours[:2] == [1.0, 448.0] and math.isnan(ours[2]) and math.copysign(1.0, ours[3]) == -1.0 and ours[3] == 0.0
    fnuz = codes.view(torch.float8_e4m3fnuz).float().tolist()
    assert fnuz[:3] == [0.5, 224.0, 240.0] and math.isnan(fnuz[3])


def test_p12_a_number_beyond_the_largest() -> None:
    beyond = torch.tensor([465.0, 464.0])
    saturated, special = (encode(beyond, ElementRule(E4M3, Tie.EVEN, overflow=rule)).tolist() for rule in Overflow)
    assert saturated == [0x7E, 0x7E] and special == [0x7F, 0x7E]


def test_p14_nibbles_of_a_byte() -> None:
    byte = torch.tensor([0x71], dtype=torch.uint8)
    e2m1 = get_scheme("mxfp4-even").element
    assert decode(unpack(byte, Layout.LOW_NIBBLE_FIRST), e2m1).tolist() == [0.5, 6.0]
    assert decode(unpack(byte, Layout.HIGH_NIBBLE_FIRST), e2m1).tolist() == [6.0, 0.5]


def test_p14_orders_of_codes() -> None:
    assert read_as_halves(torch.arange(4), 4).tolist() == [0, 2, 1, 3]
    assert read_as_halves(torch.arange(8), 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert read_as_neighbours(read_as_halves(torch.arange(8), 8), 8).tolist() == list(range(8))
    linear = pack(torch.arange(32, dtype=torch.uint8) % 16, Layout.LOW_NIBBLE_FIRST)
    assert unpack(linear, Layout.GGML_SPLIT).tolist() == read_as_halves(torch.arange(32) % 16, 32).tolist()


def test_p14_minus_one_in_a_nibble() -> None:
    minus_one = torch.tensor([-1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int8)
    assert int(pack(minus_one, Layout.INT32_WORDS)[0]) & 15 == 7
    assert int(pack(minus_one, Layout.LOW_NIBBLE_FIRST)[0]) & 15 == 15


def test_p14_a_grid_of_scales_and_its_transpose() -> None:
    grid = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    assert transposed_weights.viewed_transposed(grid).tolist() == [[1.0, 4.0], [2.0, 8.0]]


P15 = ["gate", "gate_proj", "gate_up_proj"]


def test_p15_a_pattern_for_the_router_leaves_projections_alone() -> None:
    router = Rule(match="*mlp.gate", weight="fp8-tensor")
    assert [router.covers(f"model.layers.3.mlp.{name}") for name in P15] == [True, False, False]
    others = ["shared_expert_gate", "block_sparse_moe.gate", "mixer.gate"]
    assert not any(router.covers(f"model.layers.3.{name}") for name in others)
    every_gate = Rule(match="*.gate", weight="fp8-tensor")
    assert [every_gate.covers(f"model.layers.3.{name}") for name in others] == [False, True, True]


def test_p15_a_dot_in_a_pattern_is_a_dot() -> None:
    layer = Rule(match="model.layers.3.*", weight="fp8-tensor")
    assert [layer.covers(name) for name in ("model.layers.3.mlp", "model.layers.34.mlp")] == [True, False]


@pytest.mark.parametrize("quantizer", ["conventions:skyrl-int4-g32-div7.5", "compressed-tensors:int4-g32"])
def test_p17_repeated_quantization_shrinks(quantizer: str) -> None:
    positive, negative = [1.0, 0.3], [-1.0, 0.3]
    maxima, minima = [], []
    for _ in range(4):
        positive, negative = values_of(quantizer, positive, BF16), values_of(quantizer, negative, BF16)
        maxima.append(positive[0])
        minima.append(negative[0])
    assert agree([0.9375, 0.875, "0.816", "0.762"], maxima)
    assert minima == [-0.9375, -1.0, -0.9375, -1.0]


def test_p17_the_other_divisor_is_stable() -> None:
    head = [1.0, 0.3]
    for _ in range(3):
        head = values_of("conventions:skyrl-int4-g32-div7", head, BF16)
        assert agree([1.0, "0.2852"], head)


def test_p18_router_logits_tie_in_bf16() -> None:
    logits = torch.tensor([[1.0010, 1.0020]])
    chosen = [int(select_experts(x.float(), torch.zeros(2), 1)) for x in (logits, logits.bfloat16())]
    assert chosen == [1, 0]


def test_p11_blocks_of_zeros() -> None:
    zero = torch.zeros(128, 128)
    for quantizer in ("fp8-block128", "mxfp4-even", "int4-g32-div7", "nvfp4"):
        assert torch.equal(fake_quantize(zero, get_scheme(quantizer)), zero)
    assert load_backend("torchao").dequantize(load_backend("torchao").quantize(zero, "fp8-block128")).isnan().all()


def test_p13_gate_and_up_under_one_global_scale() -> None:
    gate, up = (quantize_weight(filled(head, 16), get_scheme("nvfp4")) for head in ([0.5, 0.25], [1.0, 0.5]))
    assert gate.quantized is not None and up.quantized is not None
    kept = dequantize(replace(up.quantized, second_scales=gate.quantized.second_scales))
    assert kept[0, :2].tolist() == [0.5, 0.25]  # half of what it should be
    found = shared_scale.recognise(
        {Projection.GATE: gate, Projection.UP: up},
        {Projection.GATE: Weight(values=gate.values), Projection.UP: Weight(values=kept)},
    )
    assert found is not None and (found.serve, found.explains) == ("that of gate, for the codes of both", 1.0)


def test_p16_shards_smaller_than_a_block() -> None:
    x = torch.ones(1, 128)
    x[0, 64:] = 100.0
    scheme = get_scheme("int4-g128-div7")
    assert fake_quantize(x, scheme)[0, 0] == 0.0
    assert cut_groups.quantize_in_shards(x, scheme, 2, -1)[0, 0] == 1.0


def test_p16_swapped_experts() -> None:
    master = torch.stack([torch.full((1, 32), value) for value in (1.0, 2.0)])
    served = permuted_experts.apply({Projection.WHOLE: quantize_weight(master, get_scheme("mxfp4-even"))})
    assert served is not None and served[Projection.WHOLE].values[:, 0, 0].tolist() == [2.0, 1.0]
