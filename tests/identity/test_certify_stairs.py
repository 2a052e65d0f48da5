"""The stairs are the reference: against exact scalar arithmetic, and against tensor code at every step."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.format import BF16
from quantaudit.identity.differences import bits_of, is_same
from quantaudit.identity.domain import BF16_INPUT, FP32_INPUT, InputNumbers, ladder_block, listed_block
from quantaudit.identity.fast_reference import build_staircase, climb, has_staircase
from quantaudit.identity.laying import lay_out
from quantaudit.identity.observe import is_signed, observe
from quantaudit.identity.sides import open_sides
from quantaudit.identity.treads import tread_edges
from quantaudit.numerics import get_scheme, scheme_names
from quantaudit.numerics.scalar import quantize_matrix

ON_STAIRS = [name for name in scheme_names() if has_staircase(get_scheme(name))]
QUICK = [
    "mxfp4-floor-away",
    "mxfp4-even",
    "mxfp4-rceil-zero",
    "int4-g32-div7.5",
    "int2-g32",
    "nf4-b64",
]
VARIED = [*QUICK, "mxfp8-e5m2-ceil", "int4-g128-div8-narrow", "fp4-b64", "gguf-q4_0"]


def compare_at_every_step(name: str, ranks: torch.Tensor, inputs: InputNumbers) -> None:
    reference, run = open_sides(name, f"eager:{name}")
    for is_negative in (False, True) if is_signed(reference.scheme) else (False,):
        for ranks_B in ranks.split(512):
            edges_BM = tread_edges(reference.scheme, ranks_B, inputs)
            block = listed_block(ranks_B, edges_BM, inputs, is_negative=is_negative)
            laid_out = lay_out(block, run.scheme, is_statistic_first=True)
            a = observe(reference, block, None, inputs.dtype)
            b = observe(run, block, laid_out, inputs.dtype)
            assert a.codes_BM is not None and b.codes_BM is not None
            assert torch.equal(a.codes_BM, b.codes_BM)
            assert torch.equal(bits_of(a.values_BM), bits_of(b.values_BM))
            assert is_same(a, b)


@pytest.mark.parametrize("name", QUICK)
def test_stairs_equal_tensor_code_at_every_step_of_every_statistic(name: str) -> None:
    compare_at_every_step(name, torch.arange(BF16_INPUT.num_ranks), BF16_INPUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ON_STAIRS if name not in QUICK])
def test_stairs_of_the_other_schemes_equal_tensor_code_at_every_step(name: str) -> None:
    # A matrix for a group, or 255 treads for 15: every sixteenth statistic takes as long as all of a 4-bit scheme.
    step = 16 if get_scheme(name).granularity.kind in ("block", "tensor", "channel") or name.startswith("int8") else 1
    compare_at_every_step(name, torch.arange(0, BF16_INPUT.num_ranks, step), BF16_INPUT)


@pytest.mark.parametrize("name", VARIED)
def test_stairs_equal_tensor_code_in_fp32(name: str) -> None:
    ranks = torch.randint(0, FP32_INPUT.num_ranks, (100,), generator=torch.Generator().manual_seed(1))
    compare_at_every_step(name, ranks.sort().values, FP32_INPUT)


@pytest.mark.parametrize("name", VARIED)
def test_stairs_equal_exact_scalar_arithmetic(name: str) -> None:
    scheme = get_scheme(name)
    size = getattr(scheme.granularity, "size", 32)
    rng = torch.Generator().manual_seed(2)
    ranks_B = torch.randint(0, BF16_INPUT.num_ranks, (40,), generator=rng)
    # Values of the last seven binades below the statistic, where codes differ, both signs.
    below_BM = torch.randint(0, 900, (40, size - 1), generator=rng)
    values_BM = (ranks_B.unsqueeze(1) - below_BM).clamp(min=0)
    signed_BM = torch.where(below_BM % 2 == 0, values_BM, -1 - values_BM)
    block = listed_block(ranks_B, signed_BM, BF16_INPUT)
    found = climb(build_staircase(ranks_B, scheme, BF16_INPUT, torch.float32), block)
    assert found.codes_BM is not None
    rows = torch.cat([block.statistics_B.unsqueeze(1), block.values_BM], dim=1).double().tolist()
    for row, codes, values in zip(rows, found.codes_BM.tolist(), found.values_BM.tolist(), strict=True):
        exact = quantize_matrix([row], scheme, BF16)
        assert codes == exact.codes[0][1:]
        assert list(map(repr, values)) == list(map(repr, exact.values[0][1:]))  # NaN and -0 too


def test_a_ladder_gives_what_listing_its_values_gives() -> None:
    scheme = get_scheme("int4-g32-div7")
    ranks_B = torch.arange(0x3F80, 0x3F84)
    stairs = build_staircase(ranks_B, scheme, BF16_INPUT, torch.bfloat16)
    ladder = ladder_block(ranks_B, BF16_INPUT)
    found = climb(stairs, ladder)
    bits_BM = ladder.bits_BM.to(torch.int64)
    signed_BM = torch.where(bits_BM >= 0, bits_BM, -1 - (bits_BM - BF16_INPUT.sign_bit))
    listed = listed_block(ranks_B, signed_BM, BF16_INPUT)
    again = climb(stairs, listed)
    order_BM = signed_BM.argsort(dim=1, stable=True)
    assert torch.equal(found.values_BM.gather(1, order_BM), again.values_BM)
    assert found.codes_BM is not None and again.codes_BM is not None
    assert torch.equal(found.codes_BM.gather(1, order_BM), again.codes_BM)
