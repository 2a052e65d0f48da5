"""What every test starts from: one thread, fixed seeds, poisoned memory; and what skips without a GPU."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

# Before torch is imported anywhere: exact comparisons are of a known thread count, and small tensors gain nothing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

_SEED = 20260101


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") is not None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def start_equal() -> Iterator[None]:
    """Seeds every generator, and fills `torch.empty` with NaN, which torch does in its deterministic mode."""
    random.seed(_SEED)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(_SEED)
    if torch is None:
        yield
        return
    torch.manual_seed(_SEED)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
