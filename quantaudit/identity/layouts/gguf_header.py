"""The header of a gguf file, read strictly: a file that nobody vouches for is refused, never believed.

    "GGUF" | version u32 | tensors u64 | keys u64 | keys and values | tensors: name, axes, type, offset | data

Little-endian. Strings and arrays state their lengths; every length is checked against what is left of the header
before anything of that length is read. Axes are listed with the fastest first, and are turned round here.

Source: the format description in the ggml repository, version 3.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quantaudit.checkpoint.file_range import read_range, size_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER = 1 << 26
_MAX_TENSORS = 1 << 20
_MAX_RANK = 8
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32 = 4
_ALIGNMENT_KEY = b"general.alignment"
_ALIGNMENT = 32


class GgufTensor(NamedTuple):
    """One tensor: name, axes with the slowest first, number of its type, and where it starts in the file."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    start: int
    num_bytes: int


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A place in the header."""

    path: Path
    data: memoryview
    at: int = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise _refuse(self.path, f"ends inside its header, at byte {self.at}", "a whole header of at most 64 MiB")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def string(self) -> bytes:
        return bytes(self.take(self.integer(8)))


class _Info(NamedTuple):
    """A tensor as the header states it: its offset counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


def read_gguf_header(path: Path) -> tuple[GgufTensor, ...]:
    """Reads the tensors that a file lists, in the order of their bytes.

    Raises:
        InputError: If the header contradicts the format, itself, or the size of the file.
    """
    file_bytes = size_of(path)
    cursor = _Cursor(path=path, data=memoryview(read_range(path, 0, min(file_bytes, _MAX_HEADER))))
    if bytes(cursor.take(4)) != _MAGIC:
        raise _refuse(path, "does not begin with 'GGUF'", "a gguf file")
    version = cursor.integer(4)
    if version not in _VERSIONS:
        raise _refuse(path, f"states version {version}", "version 2 or 3, little-endian")
    num_tensors, num_keys = cursor.integer(8), cursor.integer(8)
    if num_tensors > _MAX_TENSORS:
        raise _refuse(path, f"states {num_tensors} tensors", f"at most {_MAX_TENSORS}")
    alignment = _skip_keys(cursor, num_keys)
    infos = sorted((_info(cursor) for _ in range(num_tensors)), key=lambda info: info.offset)
    if len({info.name for info in infos}) < len(infos):
        raise _refuse(path, "names a tensor twice", "every tensor once")
    return _locate(path, infos, -(-cursor.at // alignment) * alignment, file_bytes)


def _skip_keys(cursor: _Cursor, num_keys: int) -> int:
    """Skips keys and values; returns the alignment of the data."""
    alignment = _ALIGNMENT
    for _ in range(num_keys):
        key, kind = cursor.string(), cursor.integer(4)
        if key == _ALIGNMENT_KEY and kind == _UINT32:
            alignment = cursor.integer(4)
            if alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
                raise _refuse(cursor.path, f"states an alignment of {alignment}", "a power of two up to 2^20")
        else:
            _skip_value(cursor, kind)
    return alignment


def _skip_value(cursor: _Cursor, kind: int) -> None:
    if kind == _STRING:
        cursor.string()
    elif kind == _ARRAY:
        inner, count = cursor.integer(4), cursor.integer(8)
        if inner in _SCALAR_BYTES:
            cursor.take(count * _SCALAR_BYTES[inner])
        elif inner == _STRING:
            # Every string takes 8 bytes at least, so a count that lies runs into the end of the header.
            for _ in range(count):
                cursor.string()
        else:
            raise _refuse(cursor.path, f"has an array of type {inner}", "arrays of numbers or strings")
    elif kind in _SCALAR_BYTES:
        cursor.take(_SCALAR_BYTES[kind])
    else:
        raise _refuse(cursor.path, f"has a value of type {kind}", "a type of the format, 0 to 12")


def _info(cursor: _Cursor) -> _Info:
    raw = cursor.string()
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise _refuse(cursor.path, f"has the tensor name {shown(repr(raw))}", "UTF-8") from None
    rank = cursor.integer(4)
    if not 1 <= rank <= _MAX_RANK:
        raise _refuse(cursor.path, f"gives {shown(name)} {rank} axes", f"1 to {_MAX_RANK}")
    axes = struct.unpack(f"<{rank}Q", cursor.take(8 * rank))
    if math.prod(axes) > 1 << 48:
        raise _refuse(cursor.path, f"gives {shown(name)} the axes {list(axes)}", "at most 2^48 values")
    return _Info(name, tuple(reversed(axes)), cursor.integer(4), cursor.integer(8))


def _locate(path: Path, infos: list[_Info], start: int, file_bytes: int) -> tuple[GgufTensor, ...]:
    """Returns the tensors with the bytes that lie between one and the next."""
    ends = [start + info.offset for info in infos[1:]] + [file_bytes]
    found: list[GgufTensor] = []
    for info, end in zip(infos, ends, strict=True):
        begin = start + info.offset
        if not begin <= end <= file_bytes:
            raise _refuse(path, f"places {shown(info.name)} at byte {begin} of {file_bytes}", "tensors inside the file")
        found.append(GgufTensor(info.name, info.shape, info.type_number, begin, end - begin))
    return tuple(found)


def _refuse(path: Path, problem: str, expected: str) -> InputError:
    return InputError(f"{path} {problem}", expected=expected, fix="the file is damaged or no gguf: write it again")
