"""Checkpoints of the tiny model, written once and copied where a test damages one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quantaudit.numerics import get_scheme
from tests.checkpoint.tiny import save


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plain`, `packed` and `sharded` (packed, eight or so shards) checkpoints of one state."""
    root = tmp_path_factory.mktemp("checkpoints")
    scheme = get_scheme("mxfp4-even")
    save(root / "plain")
    save(root / "packed", scheme=scheme)
    save(root / "sharded", scheme=scheme, shard_bytes=20_000)
    return root


@pytest.fixture
def plain(written: Path, tmp_path: Path) -> Path:
    """A bf16 checkpoint to damage."""
    return Path(shutil.copytree(written / "plain", tmp_path / "plain"))


@pytest.fixture
def packed(written: Path, tmp_path: Path) -> Path:
    """A packed checkpoint to damage."""
    return Path(shutil.copytree(written / "packed", tmp_path / "packed"))


@pytest.fixture
def sharded(written: Path, tmp_path: Path) -> Path:
    """A packed checkpoint in shards to damage."""
    return Path(shutil.copytree(written / "sharded", tmp_path / "sharded"))
