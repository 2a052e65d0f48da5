"""The header of a safetensors file: eight bytes of length, a JSON object, then the tensors without gaps.

    file = length N (little-endian uint64) | N bytes of JSON | data
    JSON = {name: {"dtype": D, "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {str: str}}

Checked here: N, the JSON, every dtype, shape times dtype size = end - begin, no gap, no overlap, and a file that ends
exactly where the last tensor ends. After that, any byte range in the header lies inside the file.

Source: the format description of the safetensors library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

from quantaudit.checkpoint.file_range import read_range, size_of
from quantaudit.checkpoint.strict_json import parse_object, shown
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_MAX_RANK = 16
_MAX_DIMENSION = 1 << 48
_ARCHIVE_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class DType(StrEnum):
    """Every element type of the format."""

    BOOL = "BOOL"
    F4 = "F4"
    F6_E2M3 = "F6_E2M3"
    F6_E3M2 = "F6_E3M2"
    U8 = "U8"
    I8 = "I8"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    I16 = "I16"
    U16 = "U16"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"
    U32 = "U32"
    F32 = "F32"
    I64 = "I64"
    U64 = "U64"
    F64 = "F64"
    C64 = "C64"

    @property
    def bits(self) -> int:
        """Returns the width of an element."""
        return _BITS[self]


_BITS = (
    {DType.F4: 4, DType.F6_E2M3: 6, DType.F6_E3M2: 6}
    | dict.fromkeys((DType.BOOL, DType.U8, DType.I8), 8)
    | dict.fromkeys((DType.F8_E5M2, DType.F8_E4M3, DType.F8_E8M0, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ), 8)
    | dict.fromkeys((DType.I16, DType.U16, DType.F16, DType.BF16), 16)
    | dict.fromkeys((DType.I32, DType.U32, DType.F32), 32)
    | dict.fromkeys((DType.I64, DType.U64, DType.F64, DType.C64), 64)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies: `num_bytes` bytes of the file from `start` on."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """A checked header; entries are in the order of their bytes."""

    path: Path
    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]


class _Range(NamedTuple):
    """Data offsets as the header states them, relative to the end of the header."""

    begin: int
    end: int


def read_header(path: Path) -> FileHeader:
    """Reads and checks the header of one file; no tensor is read.

    Raises:
        InputError: If anything in the header contradicts the format, itself, or the size of the file.
    """
    file_bytes = size_of(path)
    header_bytes = _header_length(path, file_bytes)
    fields = parse_object(bytes(read_range(path, _LENGTH_BYTES, header_bytes)), f"the header of {path}")
    metadata = _metadata(fields.pop(_METADATA, {}), path)
    data_start = _LENGTH_BYTES + header_bytes
    entries = sorted(
        (_entry(name, value, data_start, path) for name, value in fields.items()),
        key=lambda e: (e.start, e.num_bytes),
    )
    data_end = _check_contiguous(entries, data_start, path)
    if data_end > file_bytes:
        raise _cut_short(path, f"the header promises {data_end} bytes, the file has {file_bytes}")
    if data_end < file_bytes:
        _refuse(path, f"has {file_bytes} bytes where the header promises {data_end}", "no bytes behind the last tensor")
    return FileHeader(path=path, entries=tuple(entries), metadata=metadata)


def _header_length(path: Path, file_bytes: int) -> int:
    if file_bytes < _LENGTH_BYTES:
        raise _cut_short(path, f"the length of the header alone takes {_LENGTH_BYTES} bytes, the file has {file_bytes}")
    prefix = read_range(path, 0, _LENGTH_BYTES)
    if prefix.startswith(_ARCHIVE_MAGIC):
        raise InputError(
            f"{path} is a pickle or an archive under another name, and is not loaded",
            expected="a safetensors file",
            fix="convert the checkpoint to safetensors in a sandbox, from a source you trust",
        )
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        _refuse(path, f"states a header of {length} bytes", f"2 to {MAX_HEADER_BYTES}")
    if _LENGTH_BYTES + length > file_bytes:
        raise _cut_short(path, f"its header ends at byte {_LENGTH_BYTES + length}, the file has {file_bytes}")
    return length


def _metadata(value: Json, path: Path) -> Mapping[str, str]:
    if not isinstance(value, dict):
        _refuse(path, f"has {_METADATA} of type {type(value).__name__}", "an object of strings")
    strings = {key: text for key, text in value.items() if isinstance(text, str)}
    if len(strings) < len(value):
        _refuse(path, f"has values in {_METADATA} that are not strings", "an object of strings")
    return strings


def _entry(name: str, value: Json, data_start: int, path: Path) -> TensorEntry:
    what = f"states for {shown(name)}"
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        _refuse(path, f"{what} something else than dtype, shape and data_offsets", "exactly these three")
    dtype, shape = _dtype(value["dtype"], what, path), _shape(value["shape"], what, path)
    begin, end = _offsets(value["data_offsets"], what, path)
    num_bits = math.prod(shape) * dtype.bits
    if num_bits != 8 * (end - begin):
        size = f"{num_bits // 8} bytes" if num_bits % 8 == 0 else f"{num_bits} bits"
        _refuse(path, f"{what} {end - begin} bytes", f"the {size} that {dtype} {list(shape)} takes")
    return TensorEntry(name=name, dtype=dtype, shape=shape, start=data_start + begin, num_bytes=end - begin)


def _dtype(value: Json, what: str, path: Path) -> DType:
    if not isinstance(value, str) or value not in DType.__members__:
        _refuse(path, f"{what} the dtype {shown(str(value))}", f"one of {', '.join(DType)}")
    return DType(value)


def _shape(value: Json, what: str, path: Path) -> tuple[int, ...]:
    sizes = _integers(value, _MAX_DIMENSION)
    if sizes is None or len(sizes) > _MAX_RANK:
        _refuse(path, f"{what} a shape that is none", f"at most {_MAX_RANK} integers from 0 to 2^48")
    return sizes


def _offsets(value: Json, what: str, path: Path) -> _Range:
    offsets = _integers(value, 1 << 63)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"{what} data_offsets that are no range", "two integers, 0 <= begin <= end")
    return _Range(*offsets)


def _integers(value: Json, limit: int) -> tuple[int, ...] | None:
    """Returns the integers from 0 to `limit` in a JSON list, or `None` if it is not one of those."""
    if not isinstance(value, list):
        return None
    # bool is an int to Python, not to JSON.
    found = tuple(x for x in value if isinstance(x, int) and not isinstance(x, bool) and 0 <= x <= limit)
    return found if len(found) == len(value) else None


def _check_contiguous(entries: list[TensorEntry], data_start: int, path: Path) -> int:
    """Returns where the data ends, after checking that the sorted entries follow each other."""
    position, before = data_start, "the header"
    for entry in entries:
        if entry.start < position:
            _refuse(path, f"lets {before} and {shown(entry.name)} overlap", "tensors one after the other")
        if entry.start > position:
            count = entry.start - position
            _refuse(path, f"leaves {count} bytes before {shown(entry.name)} to no tensor", "tensors without gaps")
        position, before = entry.start + entry.num_bytes, shown(entry.name)
    return position


def _cut_short(path: Path, detail: str) -> InputError:
    return InputError(f"{path} is cut short: {detail}", expected="the whole file", fix="download or copy it again")


def _refuse(path: Path, problem: str, expected: str) -> NoReturn:
    raise InputError(
        f"{path} {problem}", expected=expected, fix="the file is damaged or not safetensors: write it again"
    )
