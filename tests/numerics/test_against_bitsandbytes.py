"""bitsandbytes agrees bit for bit on whole blocks: NF4 and FP4 bytes, scales and values, and the dynamic map."""

from __future__ import annotations

import bitsandbytes.functional as bnb
import pytest
import torch
from torch import Tensor

from quantaudit.core.format import CodebookFormat
from quantaudit.numerics import dequantize, get_scheme, pack, quantize
from quantaudit.numerics.codebooks import BNB_FP4, DYNAMIC8, NF4
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.steps import step_table
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import gaussian, opposite_maxima, subnormal, ties, wide, zeros


def finite_blocks() -> Tensor:
    """Stacks finite structured rows, and more Gaussian ones."""
    return torch.cat([gaussian(), ties(), opposite_maxima(), zeros(), subnormal(), wide(), torch.randn(200, 256)])


def around_midpoints(kind: str) -> Tensor:
    """Returns blocks with absmax 1 and the fp32 numbers around every step of the codebook."""
    starts = step_table(element_rule(get_scheme(f"{kind}-b64"))).starts
    values = torch.tensor(starts)
    sides = [values, values.nextafter(values + 1), values.nextafter(values - 1)]
    x = torch.zeros(3, 64)
    x[:, 0] = 1.0
    for row, side in enumerate(sides):
        x[row, 1 : 1 + len(side)] = side
    return x.repeat(1, 4)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_tables_are_equal(kind: str) -> None:
    theirs = bnb.get_4bit_type(kind, device="cpu")  # type: ignore[no-untyped-call]
    assert_same_bits(torch.tensor({"nf4": NF4, "fp4": BNB_FP4}[kind].table), theirs)


def test_the_dynamic_map_is_equal() -> None:
    assert isinstance(DYNAMIC8, CodebookFormat)
    theirs = bnb.create_dynamic_map()  # type: ignore[no-untyped-call]
    assert_same_bits(torch.tensor(DYNAMIC8.table), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_bytes_scales_and_values_are_equal(kind: str, dtype: torch.dtype) -> None:
    x = torch.cat([finite_blocks(), around_midpoints(kind)]).to(dtype)
    q = quantize(x, get_scheme(f"{kind}-b64"))
    theirs, state = bnb.quantize_4bit(x, blocksize=64, quant_type=kind)
    assert torch.equal(pack(q.codes.flatten(), q.scheme.layout), theirs.flatten())
    assert_same_bits(q.scales, state.absmax)
    ours, values = dequantize(q), bnb.dequantize_4bit(theirs, state)
    # The conversion of a CPU from fp32 to bf16 may flush subnormal numbers, and theirs uses it.
    flushed = (values == 0) & (ours.float().abs() < torch.finfo(torch.float32).tiny) & (dtype == torch.bfloat16)
    assert_same_bits(torch.where(flushed, values, ours), values)


def test_ties_go_to_the_lower_value_at_every_border() -> None:
    for kind, table in (("nf4", NF4), ("fp4", BNB_FP4)):
        ordered = torch.tensor(sorted(table.table))
        middles = (ordered[:-1] + ordered[1:]) / 2
        starts = torch.tensor(step_table(element_rule(get_scheme(f"{kind}-b64"))).starts)
        assert torch.equal(starts, middles.nextafter(middles + 1))


def test_nested_scales_are_within_one_code_of_its_lookup() -> None:
    # Sums of these scales are exact in any order, so both means are one number. Its lookup on a CPU is approximate:
    # a code may stand one beside the nearest (about .2 % of them), never further.
    x = torch.zeros(512, 64)
    x[:, 0] = torch.randint(1, 1 << 12, (512,)).float()
    q = quantize(x, get_scheme("nf4-b64-double"))
    _, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    assert q.offset is not None and q.second_scales is not None
    assert_same_bits(q.offset, state.offset.view(1))
    assert_same_bits(q.second_scales, state.state2.absmax)
    distance = (q.scales.int() - state.absmax.int()).abs()
    assert distance.max() <= 1 and (distance > 0).float().mean() < 0.02
