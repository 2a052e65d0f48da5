"""From names, dtypes and shapes to logical tensors: what belongs together, and how it is packed.

    weight                                        plain numbers
    weight_packed U8   weight_scale U8            mxfp4: E2M1 low nibble first, E8M0 a group of 32
    weight_packed U8   weight_scale F8_E4M3       nvfp4: E2M1, a group of 16, weight_global_scale a divisor
    weight U8          weight_scale F8_E4M3       nvfp4 too, with weight_scale_2, a multiplier
    weight_packed I32  weight_scale float         int2, int3, int4, int8: offset codes, no bit to spare
    weight F8_E4M3     weight_scale U8            mxfp8: E8M0 a group of 32
    weight F8_E4M3     weight_scale[_inv] float   fp8: one scale a tensor, row, group or block
    weight I8          weight_scale float         int8: likewise

Whatever is not one of these keeps its bytes and is called an unknown layout: it can be equal, byte by byte, but is
never decoded on a guess. The configuration is not asked: the tensors say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import torch

from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.index import Located
from quantaudit.checkpoint.packed import INTEGERS, width_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1, E4M3, INT8
from quantaudit.core.scheme import Layout
from quantaudit.identity.layouts.logical import MatrixSource
from quantaudit.identity.layouts.reading import FLOATS, as_rows, read_bytes, read_tensor
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix

Bundle: TypeAlias = Mapping[str, Located]

WEIGHT, PACKED, SCALE, SCALE_INV = "weight", "weight_packed", "weight_scale", "weight_scale_inv"
GLOBAL, SHAPE, ZERO_POINT, ORDER = "weight_global_scale", "weight_shape", "weight_zero_point", "weight_g_idx"
ABOVE = "weight_scale_2"
SUFFIXES = frozenset({WEIGHT, PACKED, SCALE, SCALE_INV, GLOBAL, SHAPE, ZERO_POINT, ORDER, ABOVE})
_FLOATS = frozenset(FLOATS)
_INTEGER_ENCODINGS = {2: Encoding.INT2, 3: Encoding.INT3, 4: Encoding.INT4, 8: Encoding.INT8}
_INTEGERS = frozenset({DType.BOOL, DType.I16, DType.U16, DType.I64, DType.U64})
_BLOCK = 128


def bundle(tensors: Mapping[str, Located]) -> dict[str, dict[str, Located]]:
    """Groups tensors by module: stem to suffix to tensor; a name without such a suffix stands alone under ''."""
    found: dict[str, dict[str, Located]] = {}
    for name, located in tensors.items():
        stem, _, suffix = name.rpartition(".")
        if stem and suffix in SUFFIXES:
            found.setdefault(stem, {})[suffix] = located
        else:
            found.setdefault(name, {})[""] = located
    return found


def recognise(stem: str, parts: Bundle) -> MatrixSource:
    """Tells what the tensors of one module are.

    Raises:
        InputError: If codes lack their scales, scales their codes, shapes contradict each other, or a weight is
            stored twice.
    """
    _check_complete(stem, parts)
    if ZERO_POINT in parts or ORDER in parts:
        return _unknown(stem, parts.values())
    if PACKED in parts:
        return _packed(stem, parts)
    scale = parts.get(SCALE) or parts.get(SCALE_INV)
    if ABOVE in parts:
        return _multiplied(stem, parts)
    only = parts.get(WEIGHT) or parts.get("")
    if scale is not None and WEIGHT in parts:
        return _scaled(stem, parts[WEIGHT], scale)
    assert only is not None
    return plain(only)


def plain(located: Located) -> MatrixSource:
    """Returns a tensor of plain numbers, of integers, or of a dtype that says nothing by itself."""
    entry = located.entry
    rows_cols = as_rows(entry.shape)
    if entry.dtype not in _FLOATS:
        encoding = Encoding.INTEGERS if entry.dtype in _INTEGERS else Encoding.UNKNOWN
        return _as_bytes(entry.name, (located,), encoding, entry.dtype.value)

    def read() -> StoredMatrix:
        numbers = read_tensor(located).reshape(rows_cols)
        return StoredMatrix(encoding=Encoding.PLAIN, shape=rows_cols, parts={Part.NUMBERS: numbers})

    storage = str(FLOATS[entry.dtype]).removeprefix("torch.")
    return _source(entry.name, Encoding.PLAIN, storage, entry.shape, (located,), read)


def _check_complete(stem: str, parts: Bundle) -> None:
    has_codes = PACKED in parts
    if has_codes and WEIGHT in parts:
        raise _contradiction(stem, f"both {WEIGHT} and {PACKED}", "each weight once")
    if has_codes and SCALE not in parts:
        raise _contradiction(stem, f"{PACKED} without {SCALE}", "codes and their scales")
    if not has_codes and WEIGHT not in parts and "" not in parts:
        raise _contradiction(stem, f"{' and '.join(sorted(parts))} without a weight", "scales and their codes")


def _packed(stem: str, parts: Bundle) -> MatrixSource:
    codes, scale = parts[PACKED].entry, parts[SCALE].entry
    is_words = codes.dtype is DType.I32 and scale.dtype in _FLOATS
    kinds = {DType.U8: ScaleKind.E8M0, DType.F8_E8M0: ScaleKind.E8M0, DType.F8_E4M3: ScaleKind.E4M3}
    if len(codes.shape) < 2 or not (is_words or (codes.dtype is DType.U8 and scale.dtype in kinds)):
        return _unknown(stem, parts.values())
    if is_words:
        return _words(stem, parts)
    kind = kinds[scale.dtype]
    if (kind is ScaleKind.E4M3) != (GLOBAL in parts):
        return _unknown(stem, parts.values())
    if kind is ScaleKind.E4M3:
        return _nvfp4(stem, parts, parts[PACKED], parts[GLOBAL], multiplies_global=False)
    shape = (*codes.shape[:-1], codes.shape[-1] * 2)
    _check_groups(stem, scale, shape, 32)
    packing = Packing(element=E2M1, layout=Layout.LOW_NIBBLE_FIRST, scale=kind, tile_rows=1, tile_cols=32)
    return quantized(stem, Encoding.MXFP4, packing, shape, parts[PACKED], parts[SCALE], None)


def _multiplied(stem: str, parts: Bundle) -> MatrixSource:
    """Returns NVFP4 codes in `weight`, whose global scale is a multiplier."""
    codes, scale = parts.get(WEIGHT), parts.get(SCALE)
    is_nvfp4 = codes is not None and codes.entry.dtype is DType.U8 and len(codes.entry.shape) >= 2
    if codes is None or scale is None or not is_nvfp4 or scale.entry.dtype is not DType.F8_E4M3:
        return _unknown(stem, parts.values())
    return _nvfp4(stem, parts, codes, parts[ABOVE], multiplies_global=True)


def _nvfp4(stem: str, parts: Bundle, codes: Located, above: Located, *, multiplies_global: bool) -> MatrixSource:
    shape = (*codes.entry.shape[:-1], codes.entry.shape[-1] * 2)
    _check_groups(stem, parts[SCALE].entry, shape, 16)
    if above.entry.dtype is not DType.F32 or above.entry.num_bytes != 4:
        return _unknown(stem, parts.values())
    packing = Packing(
        element=E2M1,
        layout=Layout.LOW_NIBBLE_FIRST,
        scale=ScaleKind.E4M3,
        tile_rows=1,
        tile_cols=16,
        multiplies_global=multiplies_global,
    )
    return quantized(stem, Encoding.NVFP4, packing, shape, codes, parts[SCALE], above)


def _words(stem: str, parts: Bundle) -> MatrixSource:
    """Returns integers in words: `weight_shape` tells their width, and how many are in a last word; else 8 a word."""
    codes, scale = parts[PACKED].entry, parts[SCALE].entry
    words = codes.shape[-1]
    cols = _stated_cols(stem, parts) if SHAPE in parts else words * 8
    bits = width_of(words, cols)
    shape = (*codes.shape[:-1], cols)
    if bits is None:
        raise _contradiction(
            stem, f"{SHAPE} {list(shape)} beside codes {list(codes.shape)}", "codes of 2, 3, 4 or 8 bits in every word"
        )
    groups = scale.shape[-1] if scale.shape else 0
    if len(scale.shape) != len(shape) or scale.shape[:-1] != shape[:-1] or not groups or cols % groups:
        raise _contradiction(
            stem, f"scales {list(scale.shape)} beside a weight {list(shape)}", "one scale a group of a row"
        )
    packing = Packing(
        element=INTEGERS[bits],
        layout=Layout.INT32_WORDS,
        scale=ScaleKind.FLOAT,
        tile_rows=1,
        tile_cols=cols // groups,
    )
    return quantized(stem, _INTEGER_ENCODINGS[bits], packing, shape, parts[PACKED], parts[SCALE], None)


def _stated_cols(stem: str, parts: Bundle) -> int:
    stated, codes = parts[SHAPE].entry, parts[PACKED].entry
    if stated.dtype not in (DType.I64, DType.I32) or not 0 < stated.num_bytes <= 64:
        raise _contradiction(stem, f"a {SHAPE} of {stated.dtype}", "a few 64-bit integers")
    data = bytes(read_bytes(parts[SHAPE]).tolist())
    width = 8 if stated.dtype is DType.I64 else 4
    shape = [int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width)]
    if shape[:-1] != list(codes.shape[:-1]) or shape[-1] < 1:
        raise _contradiction(
            stem, f"{SHAPE} {shape} beside codes {list(codes.shape)}", "the rows of the codes, and their columns"
        )
    return shape[-1]


def _scaled(stem: str, weight: Located, scale: Located) -> MatrixSource:
    """Returns 8-bit codes with scales; a float weight beside a stray scale is no quantized weight."""
    codes, scales = weight.entry, scale.entry
    if len(codes.shape) != 2 or codes.dtype not in (DType.F8_E4M3, DType.I8):
        return _unknown(stem, (weight, scale))
    element, encoding = (E4M3, Encoding.FP8) if codes.dtype is DType.F8_E4M3 else (INT8, Encoding.INT8)
    rows, cols = codes.shape
    if scales.dtype in (DType.U8, DType.F8_E8M0) and element == E4M3:
        _check_groups(stem, scales, codes.shape, 32)
        tile, kind, encoding = (1, 32), ScaleKind.E8M0, Encoding.MXFP8
    elif scales.dtype in _FLOATS:
        tile, kind = _tile(stem, scales.shape, rows, cols), ScaleKind.FLOAT
    else:
        return _unknown(stem, (weight, scale))
    packing = Packing(element=element, layout=Layout.BYTES, scale=kind, tile_rows=tile[0], tile_cols=tile[1])
    return quantized(stem, encoding, packing, codes.shape, weight, scale, None)


def _tile(stem: str, grid: tuple[int, ...], rows: int, cols: int) -> tuple[int, int]:
    """Returns the rows and columns that share a scale of a grid: whole tensor, rows, groups, or blocks of 128."""
    tall, wide = (*grid, 1, 1)[:2] if len(grid) < 2 else grid[-2:]
    if len(grid) <= 2 and tall == rows and wide and cols % wide == 0:
        return 1, cols // wide
    if tall == wide == 1:
        return rows, cols
    if len(grid) == 2 and grid == (-(-rows // _BLOCK), -(-cols // _BLOCK)):
        return _BLOCK, _BLOCK
    raise _contradiction(
        stem,
        f"scales {list(grid)} beside a weight {[rows, cols]}",
        f"one scale a tensor, row, group of a row, or block of {_BLOCK} x {_BLOCK}",
    )


def quantized(
    stem: str,
    encoding: Encoding,
    packing: Packing,
    shape: tuple[int, ...],
    codes: Located,
    scales: Located,
    above: Located | None,
) -> MatrixSource:
    """Returns codes with scales; `shape` is that of the weight."""
    rows, cols = as_rows(shape)

    def read() -> StoredMatrix:
        stored_scales = read_tensor(scales)
        grid = (-(-rows // packing.tile_rows), -(-cols // packing.tile_cols))
        parts = {Part.CODES: read_tensor(codes).reshape(rows, -1), Part.SCALES: stored_scales.reshape(grid)}
        if above is not None:
            parts[Part.GLOBAL_SCALE] = read_tensor(above).reshape(())
        return StoredMatrix(encoding=encoding, shape=(rows, cols), parts=parts, packing=packing)

    located = (codes, scales) if above is None else (codes, scales, above)
    return _source(stem, encoding, describe(encoding, packing, scales.entry.dtype.value), shape, located, read)


def describe(encoding: Encoding, packing: Packing, scale_dtype: str) -> str:
    """Returns an encoding for people: elements, packing, scales and who shares them."""
    scale = packing.scale.value if packing.scale is not ScaleKind.FLOAT else scale_dtype.lower()
    tile = f"{packing.tile_rows} x {packing.tile_cols}"
    return f"{encoding}, {packing.layout}, {scale} scale a {tile} tile"


def _unknown(stem: str, located: Iterable[Located]) -> MatrixSource:
    parts = tuple(sorted(located, key=lambda part: part.entry.name))
    return _as_bytes(stem, parts, Encoding.UNKNOWN, " and ".join(part.entry.dtype.value for part in parts))


def _as_bytes(stem: str, located: tuple[Located, ...], encoding: Encoding, storage: str) -> MatrixSource:
    shape = located[0].entry.shape if len(located) == 1 else (sum(part.entry.num_bytes for part in located),)
    read = partial(_read_raw, located, encoding)
    return _source(stem, encoding, f"{encoding}, {storage}", shape, located, read)


def _read_raw(located: tuple[Located, ...], encoding: Encoding) -> StoredMatrix:
    raw = torch.cat([read_bytes(part) for part in located])
    return StoredMatrix(encoding=encoding, shape=(1, raw.numel()), parts={Part.NUMBERS: raw.reshape(1, -1)})


def _source(
    stem: str,
    encoding: Encoding,
    storage: str,
    shape: tuple[int, ...],
    located: Iterable[Located],
    read: Callable[[], StoredMatrix],
) -> MatrixSource:
    return MatrixSource(
        label=stem,
        encoding=encoding,
        storage=storage,
        shape=shape,
        num_bytes=sum(part.entry.num_bytes for part in located),
        read=read,
    )


def _check_groups(stem: str, scale: TensorEntry, shape: tuple[int, ...], group: int) -> None:
    wanted = (*shape[:-1], shape[-1] // group)
    if shape[-1] % group or scale.shape != wanted:
        raise _contradiction(
            stem,
            f"scales {list(scale.shape)} beside a weight {list(shape)}",
            f"scales {list(wanted)}, one a group of {group}",
        )


def _contradiction(stem: str, given: str, expected: str) -> InputError:
    return InputError(
        f"{shown(stem)} has {given}",
        expected=expected,
        fix="the export is damaged or mixed: write the checkpoint again",
    )
