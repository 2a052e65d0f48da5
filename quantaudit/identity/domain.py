"""The inputs of a group quantizer: pairs of a statistic and a value, in blocks that fit a cache.

A magnitude of the input dtype is its rank: 0 for zero, one more for each next number, up to the largest finite one
(32,639 in bf16). Under a statistic of rank r the admissible values are the magnitudes of rank 0 to r with both signs,
zeros included: 2 (r + 1), which over all ranks of bf16 makes 32,640 x 32,641 = 1,065,402,240 pairs.

A block is a few statistics of one binade with a row of values each. In a ladder every row is all ranks up to the
largest of the block, first positive, then negative; what is beyond a row's own statistic is clamped to it and not
counted. A ladder may go on beyond the largest statistic, so that its length is a multiple of what a group holds. Its
values are written only where somebody asks for them.

Shape suffixes: B statistics, M values of a row, L ranks of a ladder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Values of a block: some megabytes of temporaries, and large enough that calling costs little.
_BLOCK_VALUES = 1 << 21
_MOST_STATISTICS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class InputNumbers:
    """The non-negative finite numbers of an input dtype, by rank."""

    dtype: torch.dtype
    bits_dtype: torch.dtype
    num_ranks: int
    mantissa_bits: int

    @property
    def num_binades(self) -> int:
        """Exponent fields of finite numbers, subnormals being the first."""
        return self.num_ranks >> self.mantissa_bits

    @property
    def rank_of_one(self) -> int:
        """Rank of 1."""
        return 127 << self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The sign as an integer of `bits_dtype`."""
        return torch.iinfo(self.bits_dtype).min

    def numbers(self, ranks: Tensor) -> Tensor:
        """Returns the numbers of these ranks, in `dtype`."""
        return ranks.to(self.bits_dtype).view(self.dtype)


BF16_INPUT = InputNumbers(dtype=torch.bfloat16, bits_dtype=torch.int16, num_ranks=0x7F80, mantissa_bits=7)
FP32_INPUT = InputNumbers(dtype=torch.float32, bits_dtype=torch.int32, num_ranks=0x7F800000, mantissa_bits=23)
INPUTS = {numbers.dtype: numbers for numbers in (BF16_INPUT, FP32_INPUT)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Some statistics with a row of values each.

    Attributes:
        inputs: The input dtype.
        ranks_B: int64 ranks of the statistics.
        is_negative: Whether the statistics are negative (a signed statistic only).
        listed_BM: Values as integers of `bits_dtype`, none beyond its row's statistic; repeats follow each other.
            `None` for ladders.
        ladder: L where the rows are ladders, else 0.
        matrix_rank: Rank of the absolute maximum of the whole matrix, where the scale depends on that too.
    """

    inputs: InputNumbers
    ranks_B: Tensor
    is_negative: bool
    listed_BM: Tensor | None
    ladder: int
    matrix_rank: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and values of a row."""
        return len(self.ranks_B), 2 * self.ladder if self.listed_BM is None else self.listed_BM.shape[1]

    @property
    def bits_BM(self) -> Tensor:
        """The values as integers of `bits_dtype`; those of a ladder are written now."""
        if self.listed_BM is not None:
            return self.listed_BM
        bits_BSL = torch.empty(len(self.ranks_B), 2, self.ladder, dtype=self.inputs.bits_dtype)
        write_ladder(self.ladder, self.ranks_B, self.inputs, bits_BSL)
        return bits_BSL.flatten(1)

    @property
    def matrix_absmax(self) -> Tensor:
        """The absolute maximum of the whole matrix in the input dtype, [1]."""
        assert self.matrix_rank is not None
        return self.inputs.numbers(torch.tensor([self.matrix_rank]))

    @property
    def statistics_B(self) -> Tensor:
        """The statistics in the input dtype, signed."""
        numbers = self.inputs.numbers(self.ranks_B)
        return -numbers if self.is_negative else numbers

    @property
    def values_BM(self) -> Tensor:
        """The values in the input dtype."""
        return self.bits_BM.view(self.inputs.dtype)

    @property
    def num_counted_B(self) -> list[int]:
        """Different values of every row."""
        if self.ladder:
            return [2 * (rank + 1) for rank in self.ranks_B.tolist()]
        return [int(count) for count in self.mark_counted().sum(1)]

    def mark_counted(self) -> Tensor:
        """Returns [B, M], true for every value of a row once."""
        if self.ladder:
            is_counted_BL = torch.arange(self.ladder) <= self.ranks_B.unsqueeze(1)
            return torch.cat([is_counted_BL, is_counted_BL], dim=1)
        bits_BM = self.bits_BM
        is_new_BM = torch.ones_like(bits_BM, dtype=torch.bool)
        is_new_BM[:, 1:] = bits_BM[:, 1:] != bits_BM[:, :-1]
        return is_new_BM


def write_ladder(ladder: int, ranks_B: Tensor, inputs: InputNumbers, bits_BSX: Tensor, *, first: int = 0) -> None:
    """Writes the values of a ladder, positive ones and then negative ones.

    Args:
        ladder: L.
        ranks_B: Ranks of the statistics, to which values are clamped.
        inputs: The input dtype.
        bits_BSX: [B, 2, ...] of `bits_dtype`, any strides; the axes after the signs hold L - `first` values.
        first: Rank of the first value that is written.
    """
    shape = bits_BSX.shape[2:]
    # The last few of a ladder that is longer than the dtype are clamped like all that is beyond a statistic.
    rank_X = torch.arange(first, ladder).clamp(max=torch.iinfo(inputs.bits_dtype).max)
    limits_BX = ranks_B.to(inputs.bits_dtype).view(-1, *(1 for _ in shape))
    positive_BX, negative_BX = bits_BSX.unbind(1)
    torch.minimum(rank_X.to(inputs.bits_dtype).view(shape), limits_BX, out=positive_BX)
    torch.bitwise_or(positive_BX, inputs.sign_bit, out=negative_BX)


def ladder_blocks(inputs: InputNumbers, *, is_negative: bool = False, multiple: int = 1) -> Iterator[Block]:
    """Yields every statistic of a 16-bit dtype with every admissible value, binades next to 1 first.

    Args:
        inputs: The dtype.
        is_negative: Whether the statistics are negative.
        multiple: Of which the length of a ladder is one.
    """
    for binade in sorted(range(inputs.num_binades), key=lambda field: (abs(field - 127), field)):
        first = binade << inputs.mantissa_bits
        end = first + (1 << inputs.mantissa_bits)
        step = max(1, min(_MOST_STATISTICS, _BLOCK_VALUES // (2 * end)))
        for low in range(first, end, step):
            ranks_B = torch.arange(low, min(low + step, end))
            yield ladder_block(ranks_B, inputs, is_negative=is_negative, multiple=multiple)


def ladder_block(
    ranks_B: Tensor,
    inputs: InputNumbers,
    *,
    is_negative: bool = False,
    matrix_rank: int | None = None,
    multiple: int = 1,
) -> Block:
    """Returns the block of these statistics with all their values.

    Args:
        ranks_B: int64, ascending.
        inputs: A 16-bit dtype.
        is_negative: Whether the statistics are negative.
        matrix_rank: Rank of the absolute maximum of the matrix, where that matters.
        multiple: Of which the length of the ladder is one.
    """
    return Block(
        inputs=inputs,
        ranks_B=ranks_B,
        is_negative=is_negative,
        listed_BM=None,
        ladder=-(-(int(ranks_B[-1]) + 1) // multiple) * multiple,
        matrix_rank=matrix_rank,
    )


def listed_block(
    ranks_B: Tensor,
    signed_BM: Tensor,
    inputs: InputNumbers,
    *,
    is_negative: bool = False,
    matrix_rank: int | None = None,
) -> Block:
    """Returns a block of chosen values.

    Args:
        ranks_B: int64 ranks of the statistics.
        signed_BM: int64: r for +value of rank r, -1 - r for its negative; clamped to the statistic.
        inputs: The input dtype.
        is_negative: Whether the statistics are negative.
        matrix_rank: Rank of the absolute maximum of the matrix, where that matters.
    """
    limits_B1 = ranks_B.unsqueeze(1)
    ordered_BM = torch.maximum(torch.minimum(signed_BM, limits_B1), -1 - limits_B1).sort(dim=1).values
    bits_BM = torch.where(ordered_BM >= 0, ordered_BM, (-1 - ordered_BM) + inputs.sign_bit)
    return Block(
        inputs=inputs,
        ranks_B=ranks_B,
        is_negative=is_negative,
        listed_BM=bits_BM.to(inputs.bits_dtype),
        ladder=0,
        matrix_rank=matrix_rank,
    )
