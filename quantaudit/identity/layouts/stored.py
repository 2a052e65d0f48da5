"""One matrix as it is stored, decoded a few rows at a time.

    decoded = value(code) * scale in fp32, or value(code) * (scale / global scale), then one rounding to the dtype asked

A plain matrix has one part, its numbers. A quantized one has codes, packed along the last axis, scales of a grid of
tiles, and for NVFP4 a global scale that the file gives as a divisor, or as a multiplier. What is decoded at a time is
a few rows, so that memory is bounded by what is stored.

Shape suffixes: R rows, C columns, T tiles of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import torch
from torch import Tensor

from quantaudit.checkpoint.bit_words import unpack_words
from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E4M3, Format, IntegerFormat
from quantaudit.core.scheme import Layout
from quantaudit.numerics.bits import decode_e8m0
from quantaudit.numerics.packing import unpack
from quantaudit.numerics.rounding import decode

PIECE = 1 << 16  # values decoded at a time: larger temporaries cost more page faults than arithmetic
# A file may hold the reciprocal of a global scale. It, dividing by it instead of multiplying by the scale, and one
# product more on either side are five roundings of at most 2^-24. A scale that was made otherwise is off by far more,
# and products of E2M1 and E4M3 that are not equal differ by 2^-6.
_RECIPROCAL = 2.0**-21


class Part(StrEnum):
    """What a matrix is stored as."""

    NUMBERS = "numbers"
    CODES = "codes"
    SCALES = "scales"
    GLOBAL_SCALE = "global scale"


class ScaleKind(StrEnum):
    """How scales are written."""

    E8M0 = "e8m0"
    E4M3 = "e4m3"
    FLOAT = "float"  # the dtype of the tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How codes and scales are written.

    Attributes:
        element: Number format of the codes.
        layout: Where the codes of a row lie.
        scale: How scales are written.
        tile_rows: Rows that share a scale.
        tile_cols: Columns that share a scale.
        multiplies_global: Whether a global scale is a multiplier.
    """

    element: Format
    layout: Layout
    scale: ScaleKind
    tile_rows: int
    tile_cols: int
    multiplies_global: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredMatrix:
    """One matrix, read but not decoded.

    Attributes:
        encoding: How its numbers are written.
        shape: [R, C]; tensors of another rank are seen as rows of their last axis.
        parts: Plain: `NUMBERS` [R, C]. Quantized: `CODES` [R, packed], `SCALES` [T, T], `GLOBAL_SCALE` []. Neither
            integers nor an unknown layout: `NUMBERS` [1, bytes] uint8.
        packing: How codes and scales are written; `None` if there are none.
    """

    encoding: Encoding
    shape: tuple[int, int]
    parts: Mapping[Part, Tensor]
    packing: Packing | None = None

    @property
    def is_decodable(self) -> bool:
        """Returns whether its values are floating-point numbers that can be read."""
        return self.encoding not in (Encoding.INTEGERS, Encoding.UNKNOWN)

    @property
    def dtype(self) -> torch.dtype | None:
        """Returns the dtype of plain numbers; `None` for quantized ones, whose dtype is the reader's choice."""
        return self.parts[Part.NUMBERS].dtype if self.packing is None and self.is_decodable else None

    @property
    def slack(self) -> float:
        """Returns how far, at most, values are off those of the quantizer whose scale's reciprocal is stored."""
        divides = self.packing is not None and Part.GLOBAL_SCALE in self.parts and not self.packing.multiplies_global
        return _RECIPROCAL if divides else 0.0

    def codes(self, rows: slice) -> Tensor:
        """Returns codes of some rows, [R, C] uint8, or int8 for integers."""
        assert self.packing is not None
        packed = self.parts[Part.CODES][rows]
        if self.packing.layout is Layout.INT32_WORDS:
            return unpack_words(packed, self.packing.element.bits, self.shape[1])
        dtype = torch.int8 if isinstance(self.packing.element, IntegerFormat) else torch.uint8
        return unpack(packed, self.packing.layout, dtype=dtype, num_codes=self.shape[1])

    def scales(self, tiles: slice = slice(None)) -> Tensor:
        """Returns the scale of every tile of some rows of tiles, [T, T] fp32, the global one divided in."""
        assert self.packing is not None
        stored = self.parts[Part.SCALES][tiles]
        match self.packing.scale:
            case ScaleKind.E8M0:
                scales = decode_e8m0(stored)
            case ScaleKind.E4M3:
                scales = decode(stored, E4M3)
            case ScaleKind.FLOAT:
                scales = stored.float()
        above = self.parts.get(Part.GLOBAL_SCALE)
        if above is None:
            return scales
        return scales * above.float() if self.packing.multiplies_global else scales / above.float()

    def values(self, rows: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns decoded values of some rows, [R, C], rounded once to `dtype`."""
        if self.packing is None:
            return self.parts[Part.NUMBERS][rows].to(dtype)
        ratios_RC, width = self._ratios(rows), self.packing.tile_cols
        if self.packing.tile_rows > 1 or self.shape[1] % width:
            return (ratios_RC * self.row_scales(rows)).to(dtype)
        grouped = ratios_RC.view(ratios_RC.shape[0], -1, width) * self.scales(rows).unsqueeze(-1)
        return grouped.flatten(1).to(dtype)

    def _ratios(self, rows: slice) -> Tensor:
        """Returns the values of the codes of some rows, [R, C] fp32, not scaled yet."""
        assert self.packing is not None
        if self.packing.layout is not Layout.LOW_NIBBLE_FIRST or self.shape[1] % 2:
            return decode(self.codes(rows), self.packing.element)
        packed = self.parts[Part.CODES][rows]
        pairs: Tensor = _pair_table(self.packing.element).index_select(0, packed.flatten().to(torch.int32))
        return pairs.view(torch.float32).view(packed.shape[0], self.shape[1])

    def row_scales(self, rows: slice) -> Tensor:
        """Returns the scale of every value of some rows, [R, C] fp32."""
        assert self.packing is not None
        height, first = self.packing.tile_rows, rows.start // self.packing.tile_rows
        scales_TT = self.scales(slice(first, (rows.stop - 1) // height + 1))
        if height > 1:
            scales_TT = scales_TT[torch.arange(rows.start, rows.stop) // height - first]
        return scales_TT.repeat_interleave(self.packing.tile_cols, dim=1)[:, : self.shape[1]]

    def row_pieces(self, piece: int = PIECE) -> Iterator[slice]:
        """Yields slices of consecutive rows, each of about `piece` values."""
        rows, cols = self.shape
        step = max(1, piece // max(cols, 1))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def num_non_finite(self) -> int:
        """Returns how many values are NaN or infinite; codes are decoded only if a scale or the format allows one."""
        if not self.is_decodable or self._must_be_finite():
            return 0
        pieces = (self.values(rows) for rows in self.row_pieces())
        return sum(piece.numel() - int(piece.isfinite().sum()) for piece in pieces)

    def _must_be_finite(self) -> bool:
        if self.packing is None or self.packing.element == E4M3:
            return False
        largest = self.scales().abs().amax() * self.packing.element.max
        return bool(largest.isfinite())

    @property
    def num_bytes(self) -> int:
        """Returns the stored bytes."""
        return sum(part.numel() * part.itemsize for part in self.parts.values())


@lru_cache(maxsize=4)
def _pair_table(element: Format) -> Tensor:
    """Returns the two values of every byte of nibbles as one 64-bit word, [256] int64: half the look-ups."""
    dtype = torch.int8 if isinstance(element, IntegerFormat) else torch.uint8
    codes = unpack(torch.arange(256, dtype=torch.uint8).unsqueeze(1), Layout.LOW_NIBBLE_FIRST, dtype=dtype)
    return decode(codes, element).view(torch.int64).flatten()
