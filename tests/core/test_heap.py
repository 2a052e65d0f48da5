"""Freed memory is kept where the C library can be told to, and nothing breaks where it cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from quantaudit.core.heap import keep_freed_memory

_COUNT = """
import resource, torch
from quantaudit.core.heap import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory()
def work():
    for _ in range(5):
        blocks = [torch.ones(1 << 20) for _ in range(40)]  # 160 MB: glibc never keeps more than 64 by itself
        del blocks
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults() -> tuple[int, int]:
    """Returns whether memory is kept, and the page faults of work that frees and allocates."""
    ended = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True)
    kept, faults = ended.stdout.split()
    return int(kept), int(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs a C library with mallopt")
def test_memory_that_is_kept_is_not_faulted_in_again() -> None:
    kept, faults = count_faults()
    # 200,000 pages are touched. What glibc does by itself depends on what lies at the end of the heap: none or all.
    assert kept == 1
    assert faults < 2_000


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
