"""Two outcomes compared bit by bit, counted by kind of block, and the first input that differs put into words.

Shape suffixes: B statistics, M values of a row, R groups of a row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, Counterexample, Differing, Number
from quantaudit.identity.domain import Block
from quantaudit.identity.outcome import Outcome

VALUES, CODES, SCALES = "values", "codes", "scales"
_WEIGHT = {VALUES: 2, CODES: 1, SCALES: 0}
_WORD = 8  # bytes
_SUBNORMAL_BELOW = 2.0**-126
_SATURATING_FROM = 2.0**127


@dataclass(slots=True, kw_only=True)
class Tally:
    """Running counts of one kind of block."""

    num_pairs: int = 0
    num_statistics: int = 0
    scales: int = 0
    codes: int = 0
    values: int = 0
    zero_signs: int = 0
    first: Counterexample | None = None

    def keep(self, found: Counterexample) -> None:
        """Keeps the first counterexample of the weightiest part: values before codes before scales."""
        if self.first is None or _WEIGHT[found.part] > _WEIGHT[self.first.part]:
            self.first = found


@dataclass(slots=True, kw_only=True)
class Tallies:
    """Counts by kind of block, and which parts both sides show.

    Attributes:
        largest: Largest element of the format; absmax / largest is the scale that decides what is subnormal.
        smallest: Smallest positive element; that times the scale, where it is below 1, decides it too.
        by_kind: The counts.
        has_scales: Whether both sides show scales.
        has_codes: Whether both sides show codes in one numbering.
    """

    largest: float
    smallest: float = 1.0
    has_codes: bool = True
    has_scales: bool = True
    by_kind: dict[BlockKind, Tally] = field(default_factory=dict)

    def of(self, kind: BlockKind) -> Tally:
        """Returns the counts of one kind."""
        return self.by_kind.setdefault(kind, Tally())

    @property
    def has_differences(self) -> bool:
        """Whether anything was seen to differ yet, the sign of a zero too."""
        return any(one.scales or one.codes or one.values or one.zero_signs for one in self.by_kind.values())

    def note_parts(self, a: Outcome, b: Outcome) -> None:
        """Notes which parts two outcomes show."""
        self.has_scales &= a.scales_BR is not None and b.scales_BR is not None
        self.has_codes &= a.codes_BM is not None and b.codes_BM is not None

    def differing(self, kind: BlockKind) -> Differing:
        """Returns how many inputs of one kind differ."""
        tally = self.of(kind)
        return Differing(
            scales=tally.scales if self.has_scales else None,
            codes=tally.codes if self.has_codes else None,
            values=tally.values,
        )


class Masks(NamedTuple):
    """Where two outcomes differ; `scales_B` by statistic, `None` where not shown."""

    scales_B: Tensor | None
    codes_BM: Tensor | None
    values_BM: Tensor
    zero_signs_BM: Tensor


def add_block(tallies: Tallies, block: Block, a: Outcome, b: Outcome) -> None:
    """Counts one block and what differs in it."""
    tallies.note_parts(a, b)
    count_block(tallies, block)
    if not is_same(a, b, with_codes=tallies.has_codes):
        add_differences(tallies, block, a, b)


def count_block(tallies: Tallies, block: Block) -> None:
    """Counts the pairs and statistics of one block, row by row."""
    for kind, count in zip(_kinds(tallies, block), block.num_counted_B, strict=True):
        tally = tallies.of(kind)
        tally.num_pairs += count
        tally.num_statistics += 1


def add_differences(tallies: Tallies, block: Block, a: Outcome, b: Outcome) -> None:
    """Counts what differs in one block."""
    masks = find_differences(a, b, block.mark_counted(), with_codes=tallies.has_codes)
    kinds = _kinds(tallies, block)
    for kind in dict.fromkeys(kinds):
        rows_B = torch.tensor([k is kind for k in kinds])
        add_masks(tallies.of(kind), masks, rows_B, block, a, b)


def _kinds(tallies: Tallies, block: Block) -> list[BlockKind]:
    return [kind_of(abs(value), tallies.largest, tallies.smallest) for value in block.statistics_B.tolist()]


def kind_of(absmax: float, largest: float, smallest: float = 1.0) -> BlockKind:
    """Returns the kind of a group of finite values.

    Args:
        absmax: Its largest magnitude.
        largest: Largest element of the format.
        smallest: Smallest positive element: what it decodes to may be subnormal where the scale is not.
    """
    if absmax == 0:
        return BlockKind.ZERO
    if absmax / largest * min(1.0, smallest) < _SUBNORMAL_BELOW:
        return BlockKind.SUBNORMAL
    return BlockKind.SATURATING if absmax >= _SATURATING_FROM else BlockKind.ORDINARY


def is_same(a: Outcome, b: Outcome, *, with_codes: bool = True) -> bool:
    """Returns whether two outcomes are the same bits, quickly; scales of groups must agree with each other too."""
    if a.values_BM.dtype != b.values_BM.dtype or not _is_equal(bits_of(a.values_BM), bits_of(b.values_BM)):
        return False
    if with_codes and a.codes_BM is not None and b.codes_BM is not None and not _is_equal(a.codes_BM, b.codes_BM):
        return False
    return a.scales_BR is None or b.scales_BR is None or not _scales_differ(a.scales_BR, b.scales_BR).any()


def is_equal_in_value(a: Outcome, b: Outcome) -> bool:
    """Returns whether scales and decoded values are equal numbers: -0 is 0, and NaN equals NaN."""
    left, right = a.values_BM, b.values_BM
    if not bool(((left == right) | (left.isnan() & right.isnan())).all()):
        return False
    return a.scales_BR is None or b.scales_BR is None or not _scales_differ(a.scales_BR, b.scales_BR).any()


def find_differences(a: Outcome, b: Outcome, is_counted_BM: Tensor, *, with_codes: bool) -> Masks:
    """Returns where two outcomes differ among what is counted."""
    left, right = a.values_BM, b.values_BM
    if left.dtype != right.dtype:
        left, right = left.float(), right.float()
    is_other_BM = (bits_of(left) != bits_of(right)) & is_counted_BM
    is_zero_BM = (left == 0) & (right == 0)
    differs_BM = is_other_BM & ~is_zero_BM & ~(left.isnan() & right.isnan())
    has_codes = with_codes and a.codes_BM is not None and b.codes_BM is not None
    return Masks(
        None if a.scales_BR is None or b.scales_BR is None else _scales_differ(a.scales_BR, b.scales_BR),
        (a.codes_BM != b.codes_BM) & is_counted_BM if has_codes else None,
        differs_BM,
        is_other_BM & is_zero_BM,
    )


def _is_equal(a_BM: Tensor, b_BM: Tensor) -> bool:
    """Returns whether integers are equal, eight bytes at a time where they lie so: `torch.equal` takes one by one."""
    if a_BM.dtype != b_BM.dtype:
        return bool((a_BM == b_BM).all())
    both = (a_BM, b_BM)
    if a_BM.shape != b_BM.shape or not all(x.is_contiguous() and x.data_ptr() % _WORD == 0 for x in both):
        return torch.equal(a_BM, b_BM)
    left, right = (x.flatten().view(torch.uint8) for x in both)
    whole = len(left) // _WORD * _WORD
    words = (x[:whole].view(torch.int64) for x in (left, right))
    return torch.equal(*words) and torch.equal(left[whole:], right[whole:])


def bits_of(x: Tensor) -> Tensor:
    """Returns the bits of a bf16 or fp32 tensor as integers."""
    return x.view(torch.int16 if x.itemsize == 2 else torch.int32)


def number_of(x: Tensor) -> Number:
    """Returns a bf16 or fp32 scalar with its bits."""
    width = 4 if x.itemsize == 2 else 8
    bits = int(bits_of(x.reshape(1))[0]) & ((1 << 4 * width) - 1)
    return Number(value=float(x), bits=f"0x{bits:0{width}x}")


def exact_number(value: float) -> Number:
    """Returns a Python float that fp32 holds, with its fp32 bits."""
    return Number(value=value, bits=f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}")


def _scales_differ(a_BR: Tensor, b_BR: Tensor) -> Tensor:
    """Returns the rows in which any group has another scale, as numbers: -0 is 0, and NaN equals NaN."""
    if bool((a_BR == b_BR).all()):
        return torch.zeros(len(a_BR), dtype=torch.bool, device=a_BR.device)
    return ((a_BR != b_BR) & ~(a_BR.isnan() & b_BR.isnan())).any(1)


def add_masks(tally: Tally, masks: Masks, rows_B: Tensor, block: Block, a: Outcome, b: Outcome) -> None:
    """Adds what differs in some rows of a block, `rows_B` bool, and keeps the first of it."""
    rows_B1 = rows_B.unsqueeze(1)
    tally.zero_signs += int((masks.zero_signs_BM & rows_B1).sum())
    if masks.scales_B is not None and (where_B := masks.scales_B & rows_B).any():
        tally.scales += int(where_B.sum())
        row = int(where_B.nonzero()[0])
        # The largest value stands for the whole group.
        tally.keep(describe(SCALES, row, int(block.values_BM[row].float().abs().argmax()), block, a, b))
    if masks.codes_BM is not None:
        tally.codes += _keep_first(tally, CODES, masks.codes_BM & rows_B1, block, a, b)
    tally.values += _keep_first(tally, VALUES, masks.values_BM & rows_B1, block, a, b)


def _keep_first(tally: Tally, part: str, where_BM: Tensor, block: Block, a: Outcome, b: Outcome) -> int:
    count = int(where_BM.sum())
    if count:
        row, at = divmod(int(where_BM.flatten().to(torch.uint8).argmax()), where_BM.shape[1])
        tally.keep(describe(part, row, at, block, a, b))
    return count


def describe(part: str, row: int, at: int, block: Block, a: Outcome, b: Outcome) -> Counterexample:
    """Puts one input of a block into words."""
    return Counterexample(
        part=part,
        statistic=number_of(block.statistics_B[row]),
        value=number_of(block.values_BM[row, at]),
        a_scale=_scale_at(a, b, row),
        b_scale=_scale_at(b, a, row),
        a_code=None if a.codes_BM is None else int(a.codes_BM[row, at]),
        b_code=None if b.codes_BM is None else int(b.codes_BM[row, at]),
        a_value=number_of(a.values_BM[row, at]),
        b_value=number_of(b.values_BM[row, at]),
        matrix_absmax=None if block.matrix_rank is None else number_of(block.matrix_absmax),
    )


def _scale_at(side: Outcome, other: Outcome, row: int) -> Number | None:
    """Returns the scale of a row; of a row whose groups disagree, the first that is not the other side's."""
    if side.scales_BR is None:
        return None
    scales_R = side.scales_BR[row]
    if other.scales_BR is not None:
        others_R = other.scales_BR[row]
        differs_R = scales_R != (others_R if others_R.shape == scales_R.shape else others_R[:1])
        if differs_R.any():
            return number_of(scales_R[differs_R][0].float())
    return number_of(scales_R[0].float())
