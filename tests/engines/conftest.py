"""One small checkpoint in four layouts, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.engines.realization import Realization
from quantaudit.numerics import get_scheme
from tests.engines.small import open_small, write_small


@pytest.fixture(scope="session")
def small_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plain`, `plain-shards`, `packed` and `packed-shards`."""
    root = tmp_path_factory.mktemp("small")
    scheme = get_scheme("mxfp4-even")
    write_small(root / "plain")
    write_small(root / "plain-shards", shard_bytes=50_000)
    write_small(root / "packed", scheme=scheme)
    write_small(root / "packed-shards", scheme=scheme, shard_bytes=50_000)
    return root


@pytest.fixture(scope="session")
def plain_hi(small_folders: Path) -> Realization:
    """The bf16 checkpoint, opened."""
    return open_small(small_folders / "plain")


@pytest.fixture(scope="session")
def packed_hi(small_folders: Path) -> Realization:
    """The packed checkpoint, opened."""
    return open_small(small_folders / "packed")
