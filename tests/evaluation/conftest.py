"""Small checkpoints to audit, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.numerics import get_scheme
from tests.engines.small import write_small


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plain` and `packed` checkpoints of one state."""
    root = tmp_path_factory.mktemp("audited")
    write_small(root / "plain")
    write_small(root / "packed", scheme=get_scheme("mxfp4-even"))
    return root
