"""`certify`: two quantizers as functions, and a stored certificate made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantaudit.core.certificate import Certificate, Recheck
from quantaudit.core.cores import free_cores
from quantaudit.core.errors import InputError
from quantaudit.identity import certify as functions
from quantaudit.identity.recheck import read_certificate, recheck

Progress = Callable[[str, int, int], None]
_MOST_THREADS = 1024


def certify(
    a: str,
    b: str,
    *,
    dtype: str = "bf16",
    like: str | None = None,
    deep: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Compares two quantizers as functions, on every input where inputs can be enumerated.

    Args:
        a: A catalogue scheme, `eager:scheme`, `fused:scheme`, `backend:scheme`, or `module:callable`.
        b: The same.
        dtype: Of the inputs: "bf16" or "fp32".
        like: Scheme whose groups a callable quantizes; that of the other side when `None`.
        deep: Whether to try what takes minutes to hours too: in fp32 every absmax, with every ratio of power-of-two
            scales or every step of linear ones, in bf16 all groups of two-level scales.
        threads: CPU threads; the free cores when `None`.
        progress: Told (stage, done, total).

    Returns:
        The certificate; its `identical` is the answer, its `conclusion` the answer in words.

    Raises:
        InputError: If a name or setting is wrong, or a callable does not behave.
        MissingLibraryError: If a library is not installed.
    """
    return functions.certify(
        a, b, dtype=dtype, like=like, deep=deep, threads=_choose_threads(threads), progress=progress
    )


def check_certificate(path: str | Path, *, threads: int | None = None, progress: Progress | None = None) -> Recheck:
    """Makes a stored certificate again and compares.

    Args:
        path: What `quantaudit certify A B -o FILE` wrote.
        threads: CPU threads; the free cores when `None`.
        progress: Told (stage, done, total).

    Raises:
        InputError: If the file is no certificate, or one of its sides is not there.
        MissingLibraryError: If a library is not installed.
    """
    return recheck(read_certificate(Path(path)), threads=_choose_threads(threads), progress=progress)


def _choose_threads(threads: int | None) -> int:
    if threads is None:
        return free_cores()
    if not 1 <= threads <= _MOST_THREADS:
        raise InputError(f"{threads} threads", expected=f"1 to {_MOST_THREADS}", fix="correct --threads")
    return threads
