"""A safetensors header is believed only as far as it agrees with the format, with itself and with the file."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
from pathlib import Path

import pytest

from quantaudit.checkpoint.header import MAX_HEADER_BYTES, DType, read_header
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from tests.checkpoint.tiny import file_of

GOOD = {"a": ("F32", [2, 3], bytes(24)), "b": ("U8", [], b"x"), "c": ("BF16", [0, 7], b""), "d": ("F4", [3, 2], b"abc")}


def entry(dtype: Json = "U8", shape: Json = None, offsets: Json = None) -> dict[str, Json]:
    """Returns one entry of a header; one byte at the start unless told otherwise."""
    return {
        "dtype": dtype,
        "shape": [1] if shape is None else shape,
        "data_offsets": [0, 1] if offsets is None else offsets,
    }


def write(path: Path, header: object, data: bytes = b"x") -> Path:
    """Writes a file with this header; bytes are taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_entries_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(GOOD))
    header = read_header(path)
    data = path.read_bytes()
    assert [e.name for e in header.entries] == ["a", "b", "c", "d"] or [e.name for e in header.entries] == [*"abcd"]
    for found in header.entries:
        dtype, shape, raw = GOOD[found.name]
        assert (found.dtype, found.shape) == (DType(dtype), tuple(shape))
        assert data[found.start : found.start + found.num_bytes] == raw


def test_order_in_the_header_does_not_matter(tmp_path: Path) -> None:
    header = {"late": entry(offsets=[1, 2]), "early": entry(), "__metadata__": {"format": "pt"}}
    read = read_header(write(tmp_path / "f", header, b"xy"))
    assert [e.name for e in read.entries] == ["early", "late"]
    assert read.metadata == {"format": "pt"}


def test_every_truncation_is_reported_as_such(tmp_path: Path) -> None:
    whole = file_of(GOOD)
    path = tmp_path / "model.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"model\.safetensors is cut short") as caught:
            read_header(path)
        assert str(size) in str(caught.value)


def test_a_truncation_in_the_data_says_both_sizes(tmp_path: Path) -> None:
    whole = file_of(GOOD)
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole[:-5])
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert f"the header promises {len(whole)} bytes, the file has {len(whole) - 5}" in str(caught.value)


@pytest.mark.parametrize("extra", [1, 8, 1000])
def test_bytes_behind_the_last_tensor_are_refused(tmp_path: Path, extra: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(GOOD) + bytes(extra))
    with pytest.raises(InputError, match="where the header promises"):
        read_header(path)


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_absurd_header_length_is_refused_before_anything_is_allocated(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" * 10)
    with pytest.raises(InputError, match=f"states a header of {length} bytes"):
        read_header(path)


BAD_ENTRIES: dict[str, dict[str, Json]] = {
    "unknown dtype": {"a": entry(dtype="F128")},
    "lower-case dtype": {"a": entry(dtype="u8")},
    "dtype of a member's name": {"a": entry(dtype="bits")},
    "number as dtype": {"a": entry(dtype=8)},
    "null dtype": {"a": entry(dtype=None)},
    "list as dtype": {"a": entry(dtype=["U8"])},
    "negative size": {"a": entry(shape=[-1])},
    "two negative sizes": {"a": entry(shape=[-1, -1])},
    "float size": {"a": entry(shape=[1.0])},
    "true as size": {"a": entry(shape=[True])},
    "text as size": {"a": entry(shape=["1"])},
    "shape not a list": {"a": entry(shape=1)},
    "nested shape": {"a": entry(shape=[[1]])},
    "huge size": {"a": entry(shape=[2**62])},
    "huge product": {"a": entry(shape=[2**40, 2**40])},
    "too many axes": {"a": entry(shape=[1] * 17)},
    "shape too small": {"a": entry(shape=[0])},
    "shape too large": {"a": entry(shape=[2])},
    "dtype too wide": {"a": entry(dtype="BF16")},
    "half a byte": {"a": entry(dtype="F4", shape=[1])},
    "offsets reversed": {"a": entry(offsets=[1, 0])},
    "negative offset": {"a": entry(offsets=[-1, 0])},
    "one offset": {"a": entry(offsets=[0])},
    "three offsets": {"a": entry(offsets=[0, 1, 1])},
    "float offset": {"a": entry(offsets=[0, 1.0])},
    "true as offset": {"a": entry(offsets=[0, True])},
    "offsets not a list": {"a": entry(offsets={})},
    "offset beyond 2^63": {"a": entry(offsets=[2**63, 2**63 + 1])},
    "end beyond the file": {"a": entry(shape=[2], offsets=[0, 2])},
    "start beyond the file": {"a": entry(offsets=[9, 10])},
    "gap before the first": {"a": entry(shape=[0], offsets=[1, 1])},
    "overlap": {"a": entry(), "b": entry()},
    "empty tensor inside another": {"a": entry(dtype="F16"), "b": entry(shape=[0], offsets=[2, 2])},
    "no tensor for the byte": {},
    "entry not an object": {"a": [1]},
    "missing field": {"a": {"dtype": "U8", "shape": [1]}},
    "extra field": {"a": {**entry(), "device": "cuda"}},
    "metadata not an object": {"__metadata__": [], "a": entry()},
    "metadata not strings": {"__metadata__": {"n": 1}, "a": entry()},
}


@pytest.mark.parametrize("header", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
def test_a_header_that_contradicts_the_format_is_refused(tmp_path: Path, header: dict[str, Json]) -> None:
    path = write(tmp_path / "model.safetensors", header)
    with pytest.raises(InputError, match=r"model\.safetensors") as caught:
        read_header(path)
    assert caught.value.expected and caught.value.fix


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([[0, 4], [3, 7]], "lets 'a' and 'b' overlap"), ([[0, 4], [5, 9]], "leaves 1 bytes before 'b' to no tensor")],
)
def test_overlaps_and_gaps_name_the_tensors(tmp_path: Path, offsets: list[list[int]], message: str) -> None:
    header = {name: entry(shape=[4], offsets=list(o)) for name, o in zip("ab", offsets, strict=True)}
    with pytest.raises(InputError, match=message):
        read_header(write(tmp_path / "f", header, bytes(offsets[1][1])))


def test_a_tensor_named_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(entry())
    with pytest.raises(InputError, match="the key 'a' is there twice"):
        read_header(write(tmp_path / "f", f'{{"a": {text}, "a": {text}}}'.encode()))


def test_terminal_codes_in_a_name_never_reach_the_message(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_header(write(tmp_path / "f", {"\x1b[2J\nfine" * 50: entry(dtype="X")}))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


class _Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_under_another_name_is_not_loaded(tmp_path: Path, protocol: int) -> None:
    path, trace = tmp_path / "model.safetensors", tmp_path / "trace"
    path.write_bytes(pickle.dumps(_Bomb(trace), protocol) + bytes(100))
    with pytest.raises(InputError, match="a pickle or an archive under another name"):
        read_header(path)
    assert not trace.exists()


def test_a_zip_archive_under_another_name_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InputError, match="a pickle or an archive"):
        read_header(path)


def test_a_folder_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path, "is not a regular file"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "none", "cannot be read: No such file"),
        (Path("/dev/zero"), "is not a regular file"),
    ]:
        with pytest.raises(InputError, match=message):
            read_header(path)


def test_damaged_headers_are_refused_or_consistent(tmp_path: Path) -> None:
    whole = file_of(GOOD)
    path = tmp_path / "f"
    rng = random.Random(1)
    outcomes = set()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data) - 28)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            header = read_header(path)
        except InputError:
            outcomes.add("refused")
            continue
        outcomes.add("read")
        assert sum(e.num_bytes for e in header.entries) == 28
    assert outcomes == {"refused", "read"}


def test_every_dtype_of_the_format_has_a_width() -> None:
    assert all(dtype.bits in (4, 6, 8, 16, 32, 64) for dtype in DType)
