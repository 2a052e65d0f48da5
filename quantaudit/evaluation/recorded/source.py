"""The bytes of a recorded file, read once: size, kind and encoding are checked before anything is parsed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from quantaudit.core.errors import InputError

MAX_BYTES = 1 << 29  # 512 MiB: a hundred thousand long samples; beyond it a file is split by task
ZIP = b"PK\x03\x04"
_BOM = b"\xef\xbb\xbf"
_PACKED = {
    b"\x1f\x8b": ("gzip", "unpack it with gunzip: packed files are not opened, since they may unpack to any size"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it with unzstd: packed files are not opened"),
    b"BZh": ("bzip2", "unpack it with bunzip2: packed files are not opened"),
    b"\xfd7zXZ": ("xz", "unpack it with unxz: packed files are not opened"),
}
_PICKLE_PROTOCOLS = range(2, 6)
EXPECTED = "lm-eval samples_*.jsonl, an inspect log (.json, .eval), or plain JSONL or CSV with an id a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file in memory.

    Attributes:
        name: What messages call it.
        data: Its bytes, without a byte-order mark.
        digest: sha256 of all its bytes.
    """

    name: str
    data: bytes
    digest: str

    @property
    def label(self) -> str:
        """What tables call it."""
        return label_of(self.name)

    @property
    def is_zip(self) -> bool:
        """Whether it is a zip archive."""
        return self.data.startswith(ZIP)

    def text(self) -> str:
        """Returns the text.

        Raises:
            InputError: If it is not UTF-8.
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise InputError(
                f"{self.name}, line {line}: byte 0x{self.data[error.start]:02x} is not UTF-8",
                expected="text in UTF-8",
                fix="convert the file, for example with iconv",
            ) from None


def label_of(name: str) -> str:
    """Returns a path's last two parts, which tell two runs of one task apart."""
    return "/".join(Path(name).parts[-2:])


def read_source(path: Path, *, max_bytes: int = MAX_BYTES) -> Source:
    """Reads a file.

    Raises:
        InputError: If it is missing, no file, too large, empty, or binary other than zip.
    """
    what = str(path)
    try:
        if not os.path.exists(path):
            raise InputError(what, expected="a file that exists", fix="check the path")
        if not path.is_file():
            raise InputError(f"{what} is neither a file nor a folder", expected=EXPECTED, fix="name a file")
        if (size := path.stat().st_size) > max_bytes:
            raise InputError(f"{what}, of {size:,} bytes", expected=f"at most {max_bytes:,}", fix="split it by task")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{what}: {error.strerror}", expected="a readable file", fix="check it") from None
    _refuse_binary(data, what)
    return Source(name=what, data=data.removeprefix(_BOM), digest=hashlib.sha256(data).hexdigest())


def _refuse_binary(data: bytes, what: str) -> None:
    if not data.removeprefix(_BOM).strip():
        raise InputError(f"{what} is empty", expected=EXPECTED, fix="check that the evaluation wrote its results")
    for magic, (kind, fix) in _PACKED.items():
        if data.startswith(magic):
            raise InputError(f"{what} is packed with {kind}", expected=EXPECTED, fix=fix)
    if data[0] == 0x80 and len(data) > 1 and data[1] in _PICKLE_PROTOCOLS:
        fix = "export the results as JSONL or CSV: a pickle runs code when it is opened, so none ever is"
        raise InputError(f"{what} is a Python pickle", expected=EXPECTED, fix=fix)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{what} is UTF-16", expected="text in UTF-8", fix="convert it, for example with iconv")
    if b"\0" in data and not data.startswith(ZIP):
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise InputError(
            f"{what}, line {line}: a NUL byte, so it is not text", expected=EXPECTED, fix="export it again"
        )
