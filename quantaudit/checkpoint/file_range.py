"""Byte ranges of regular files. Reading copies: a file that shrinks meanwhile is an error, not a crash."""

from __future__ import annotations

import stat
from pathlib import Path

from quantaudit.core.errors import InputError


def size_of(path: Path) -> int:
    """Returns the size in bytes of a regular file (a link to one counts).

    Raises:
        InputError: If it cannot be reached, or is a folder, a pipe or a device.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file", expected="a file on disk", fix="replace it by the file")
    return status.st_size


def read_range(path: Path, start: int, num_bytes: int) -> bytearray:
    """Returns exactly `num_bytes` bytes from `start`.

    Raises:
        InputError: If they cannot be read, or the file ends before.
    """
    data = bytearray(num_bytes)
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            count = stream.readinto(data)
    except OSError as error:
        raise _unreadable(path, error) from None
    if count != num_bytes:
        raise InputError(
            f"{path} ended {num_bytes - count} bytes early while it was read",
            expected="a file that does not change during a run",
            fix="finish the download or copy, then run again",
        )
    return data


def read_whole(path: Path, limit: int) -> bytes:
    """Returns a whole file of at most `limit` bytes.

    Raises:
        InputError: If it is larger or cannot be read.
    """
    size = size_of(path)
    if size > limit:
        raise InputError(f"{path} has {size} bytes", expected=f"at most {limit}", fix="this is not such a file")
    return bytes(read_range(path, 0, size))


def _unreadable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or type(error).__name__
    return InputError(f"{path} cannot be read: {reason}", expected="a readable file", fix="check path and permissions")
