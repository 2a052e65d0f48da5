"""The packed formats of expert matrices: which tensors there are, in which shapes, and what their codes mean.

    mxfp4-pack-quantized   weight_packed U8 [R, C/2]     weight_scale U8 [R, C/32]       E2M1, E8M0
    nvfp4-pack-quantized   weight_packed U8 [R, C/2]     weight_scale F8_E4M3 [R, C/16]  weight_global_scale F32 [1]
    modelopt-nvfp4         weight U8 [R, C/2]            weight_scale F8_E4M3 [R, C/16]  weight_scale_2 F32 []
    pack-quantized         weight_packed I32 [R, words]  weight_scale float [R, G]       weight_shape I64 [2]
    mxfp8-quantized        weight F8_E4M3 [R, C]         weight_scale U8 [R, C/32]       E8M0
    float-quantized        weight F8_E4M3 [R, C]         weight_scale[_inv] float        a tensor, row, group or block

for a matrix of R rows and C columns in G groups. The tensors say which it is; a declaration decides only where two
granularities have scales of one shape. NVFP4 comes in two conventions: block scales are divided by the upper scale
(compressed-tensors) or multiplied by it (TensorRT Model Optimizer), and the reciprocal of an fp32 number is rarely one.

Source: compressed-tensors 0.20.1; nvidia-modelopt 0.47 for its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.names import Part
from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1, E4M3, INT2, INT3, INT4, INT8, FloatFormat, IntegerFormat
from quantaudit.core.scheme import PerBlock, PerChannel, PerGroup, PerTensor

Grain: TypeAlias = PerTensor | PerChannel | PerGroup | PerBlock

INTEGERS = {fmt.bits: fmt for fmt in (INT2, INT3, INT4, INT8)}
WORD_BITS = 32
_MX_GROUP, _NV_GROUP, _BLOCK = 32, 16, 128
_SCALES = (DType.F32, DType.BF16)


class PackedFormat(StrEnum):
    """Storage formats of quantized weights that can be read and written, and the word for several of them."""

    MXFP4 = "mxfp4-pack-quantized"
    NVFP4 = "nvfp4-pack-quantized"
    MODELOPT_NVFP4 = "modelopt-nvfp4"
    INTEGERS = "pack-quantized"
    MXFP8 = "mxfp8-quantized"
    FP8 = "float-quantized"
    MIXED = "mixed-precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How a matrix is packed.

    Attributes:
        format: Which tensors there are.
        element: Number format of the codes.
        granularity: Which values share a scale.
    """

    format: PackedFormat
    element: FloatFormat | IntegerFormat
    granularity: Grain

    def __str__(self) -> str:
        """Returns the packing in words, such as "int3 in groups of 32 (pack-quantized)"."""
        match self.granularity:
            case PerGroup(size=size):
                grain = f"groups of {size}"
            case PerBlock(rows=rows, cols=cols):
                grain = f"blocks of {rows} x {cols}"
            case PerChannel():
                grain = "rows"
            case _:
                grain = "whole tensors"
        return f"{self.element.name} in {grain} ({self.format})"


class Stored(NamedTuple):
    """What one tensor of a matrix may be."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]


MXFP4 = Packing(format=PackedFormat.MXFP4, element=E2M1, granularity=PerGroup(size=_MX_GROUP))
NVFP4 = Packing(format=PackedFormat.NVFP4, element=E2M1, granularity=PerGroup(size=_NV_GROUP))
MODELOPT_NVFP4 = Packing(format=PackedFormat.MODELOPT_NVFP4, element=E2M1, granularity=PerGroup(size=_NV_GROUP))
MXFP8 = Packing(format=PackedFormat.MXFP8, element=E4M3, granularity=PerGroup(size=_MX_GROUP))


def num_words(num_codes: int, bits: int) -> int:
    """Returns how many 32-bit words hold a row of codes without a bit to spare."""
    return -(-num_codes * bits // WORD_BITS)


def width_of(words: int, cols: int, declared: Iterable[int] = ()) -> int | None:
    """Returns the bits of the codes of which `cols` lie in so many words; `None` if no known width fits.

    Words that are filled to the last bit tell the width; partial ones are of a declared width, or of 4 bits.
    """
    known = (*declared, 4)
    fits = [b for b in (*known, *INTEGERS) if num_words(cols, b) == words and (b in known or cols * b % WORD_BITS == 0)]
    return fits[0] if fits else None


def grid_of(granularity: Grain, rows: int, cols: int) -> tuple[int, int] | None:
    """Returns the shape of the scales, seen as a matrix; `None` if the groups do not divide a row."""
    match granularity:
        case PerTensor():
            return 1, 1
        case PerChannel():
            return rows, 1
        case PerGroup(size=size):
            return None if cols % size else (rows, cols // size)
        case PerBlock(rows=tall, cols=wide):
            return -(-rows // tall), -(-cols // wide)


def parts_of(packing: Packing, rows: int, cols: int, name: str) -> dict[Part, Stored]:
    """Returns the tensors of a matrix of `rows` x `cols`; `weight_scale_inv` stands for `weight_scale` too.

    Args:
        packing: How it is packed.
        rows: R.
        cols: C.
        name: Of the matrix, for messages.

    Raises:
        InputError: If its groups do not divide a row, or two codes do not fill a byte.
    """
    grid = grid_of(packing.granularity, rows, cols)
    is_halved = packing.element.bits == 4 and packing.format is not PackedFormat.INTEGERS
    if grid is None or (is_halved and cols % 2):
        raise InputError(
            f"{name} with {cols} columns, packed as {packing}",
            expected="a whole number of groups in a row",
            fix="store these experts in bf16",
        )
    codes, matrix = ((rows, cols // 2),), ((rows, cols),)
    match packing.format:
        case PackedFormat.MXFP4:
            return {Part.PACKED: Stored(codes, (DType.U8,)), Part.SCALE: Stored((grid,), (DType.U8,))}
        case PackedFormat.NVFP4:
            return _nvfp4(Part.PACKED, Part.GLOBAL, codes, grid)
        case PackedFormat.MODELOPT_NVFP4:
            return _nvfp4(Part.WEIGHT, Part.ABOVE, codes, grid)
        case PackedFormat.MXFP8:
            return {Part.WEIGHT: Stored(matrix, (DType.F8_E4M3,)), Part.SCALE: Stored((grid,), (DType.U8,))}
        case PackedFormat.INTEGERS:
            words = ((rows, num_words(cols, packing.element.bits)),)
            return {
                Part.PACKED: Stored(words, (DType.I32,)),
                Part.SCALE: Stored((grid,), _SCALES),
                Part.SHAPE: Stored(((2,),), (DType.I64, DType.I32)),
            }
        case _:
            shapes = (grid, (1,), ()) if grid == (1, 1) else (grid,)
            return {Part.WEIGHT: Stored(matrix, (DType.F8_E4M3,)), Part.SCALE: Stored(shapes, _SCALES)}


def _nvfp4(codes: Part, above: Part, shapes: tuple[tuple[int, ...], ...], grid: tuple[int, int]) -> dict[Part, Stored]:
    return {
        codes: Stored(shapes, (DType.U8,)),
        Part.SCALE: Stored((grid,), (DType.F8_E4M3,)),
        above: Stored(((1,), ()), (DType.F32,)),
    }


def find_packing(
    entries: Mapping[Part, TensorEntry], rows: int, cols: int, declared: Iterable[Packing] = ()
) -> Packing:
    """Tells how a matrix is packed of which these tensors are there, as `storage.classify` found them.

    Args:
        entries: What is stored.
        rows: R.
        cols: C.
        declared: What the configuration declares; asked where tensors leave it open.

    Raises:
        InputError: If no packing has codes or scales of these shapes.
    """
    if Part.PACKED in entries:
        if entries[Part.PACKED].dtype is DType.I32:
            return _integers(entries, rows, cols, declared)
        return NVFP4 if Part.GLOBAL in entries else MXFP4
    if Part.ABOVE in entries:
        return MODELOPT_NVFP4
    scale = scale_of(entries)
    return MXFP8 if scale.dtype is DType.U8 else _fp8(scale, rows, cols, declared)


def scale_of(entries: Mapping[Part, TensorEntry]) -> TensorEntry:
    """Returns the scales of a packed matrix, under either name."""
    return entries.get(Part.SCALE) or entries[Part.SCALE_INV]


def _integers(entries: Mapping[Part, TensorEntry], rows: int, cols: int, declared: Iterable[Packing]) -> Packing:
    codes, scale = entries[Part.PACKED], scale_of(entries)
    hints = [one for one in declared if one.format is PackedFormat.INTEGERS]
    is_matrix = len(codes.shape) == 2 and codes.shape[0] == rows
    bits = width_of(codes.shape[1], cols, (one.element.bits for one in hints)) if is_matrix else None
    if bits is None:
        words = " or ".join(str(num_words(cols, b)) for b in INTEGERS)
        raise InputError(
            f"{codes.name} has the shape {list(codes.shape)}",
            expected=f"[{rows}, {words}], codes of {', '.join(map(str, INTEGERS))} bits of {cols} columns",
            fix="the checkpoint is damaged, or packed in a width that is not implemented: write it again",
        )
    granularity = _grain(scale, rows, cols, [one.granularity for one in hints])
    return Packing(format=PackedFormat.INTEGERS, element=INTEGERS[bits], granularity=granularity)


def _fp8(scale: TensorEntry, rows: int, cols: int, declared: Iterable[Packing]) -> Packing:
    hints: list[Grain] = [one.granularity for one in declared if one.format is PackedFormat.FP8]
    granularity = _grain(scale, rows, cols, [*hints, PerTensor(), PerBlock(rows=_BLOCK, cols=_BLOCK)])
    return Packing(format=PackedFormat.FP8, element=E4M3, granularity=granularity)


def _grain(scale: TensorEntry, rows: int, cols: int, likely: Iterable[Grain]) -> Grain:
    """Returns the first granularity whose scales have this shape: of the likely ones, then rows and their groups."""
    shape = scale.shape if len(scale.shape) == 2 else (1, 1) if scale.shape in ((), (1,)) else (0, 0)
    groups = shape[1]
    rest: list[Grain] = [PerGroup(size=cols // groups)] if groups and cols % groups == 0 else []
    if groups == 1 and cols not in (_MX_GROUP, _BLOCK):
        rest.insert(0, PerChannel())
    found = next((one for one in (*likely, *rest) if grid_of(one, rows, cols) == shape), None)
    if found is None:
        raise InputError(
            f"{scale.name} has the shape {list(scale.shape)}",
            expected=f"one scale a row, group of a row, tensor or block of {_BLOCK} x {_BLOCK} of a weight "
            f"[{rows}, {cols}]",
            fix="the export is damaged or mixed: write the checkpoint again",
        )
    return found


def check_parts(entries: Mapping[Part, TensorEntry], packing: Packing, rows: int, cols: int) -> None:
    """Checks shape and dtype of every tensor of a packed matrix.

    Raises:
        InputError: If one differs.
    """
    wanted = parts_of(packing, rows, cols, next(iter(entries.values())).name.rpartition(".")[0])
    for part, entry in entries.items():
        kind = Part.SCALE if part is Part.SCALE_INV else part
        if kind not in wanted:
            raise InputError(
                f"{entry.name} beside codes packed as {packing}",
                expected=" and ".join(sorted(wanted)),
                fix="write the checkpoint again",
            )
        shapes, dtypes = wanted[kind]
        if entry.shape not in shapes:
            raise InputError(
                f"{entry.name} has the shape {list(entry.shape)}",
                expected=" or ".join(str(list(shape)) for shape in shapes),
                fix="use the config.json of this checkpoint",
            )
        if entry.dtype not in dtypes:
            raise InputError(
                f"{entry.name} is stored as {entry.dtype}",
                expected=" or ".join(dtypes),
                fix="write the tensor again in that dtype",
            )
