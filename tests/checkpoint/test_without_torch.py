"""Inspecting a checkpoint, and refusing a bad one, never imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "header folder index config_json config_export declared declared_weights declaring packed names layout storage "
    "precision strict_json"
).split()


def run(code: str) -> str:
    """Returns what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("module", MODULES)
def test_the_module_needs_no_torch(module: str) -> None:
    assert run(f"import sys, quantaudit.checkpoint.{module}; print('torch' in sys.modules)") == "False"


def test_inspecting_needs_no_torch(written: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from quantaudit.checkpoint.precision import inspect_checkpoint
print(inspect_checkpoint(Path({str(written / "sharded")!r})).num_packed, "torch" in sys.modules)
"""
    assert run(code) == "36 False"


def test_a_bad_folder_is_refused_without_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from quantaudit.checkpoint.precision import inspect_checkpoint
from quantaudit.core.errors import InputError
try:
    inspect_checkpoint(Path({str(tmp_path)!r}))
except InputError as error:
    print("is empty" in str(error), "torch" in sys.modules)
"""
    assert run(code) == "True False"
