"""Comparing and fingerprinting hold one matrix of each side, however many there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.identity.test_layouts import in_module, mxfp4_parts, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc"),
]

ROWS, COLS, EXPERTS = 1024, 2048, 24
MATRIX = 2 * ROWS * COLS  # bf16
PIECES = 16 << 20  # what is decoded at a time, some fp32 and int64 copies of 2^18 values

# `getrusage` would begin at the peak of the parent; the peak of the process itself is in /proc.
_CODE = """
import sys
from quantaudit.core.comparison import Mode
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_path import fingerprint
def peak():
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM:")).split()[1])
verb, few, many = sys.argv[1:]
def run(where):
    if verb == "compare":
        compare(f"{where}/plain.safetensors", f"{where}/packed.safetensors", threads=1)
    else:
        fingerprint(f"{where}/plain.safetensors", scheme="mxfp4-even", threads=1)
run(few)
before = peak()
run(many)
print(peak() - before)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `few` of two experts and `many` of 24, each in bf16 and packed."""
    root = tmp_path_factory.mktemp("experts")
    for name, count in (("few", 2), ("many", EXPERTS)):
        (root / name).mkdir()
        x = torch.randn(ROWS, COLS).bfloat16()
        modules = [f"model.layers.0.mlp.experts.{e}.up_proj" for e in range(count)]
        write(root / name / "plain.safetensors", {f"{module}.weight": x for module in modules})
        packed = mxfp4_parts(x)
        write(
            root / name / "packed.safetensors",
            {key: part for module in modules for key, part in in_module(packed, module).items()},
        )
    return root


@pytest.mark.parametrize("verb", ["compare", "fingerprint"])
def test_memory_does_not_grow_with_the_number_of_matrices(verb: str, files: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CODE, verb, str(files / "few"), str(files / "many")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 2 * MATRIX + PIECES < EXPERTS * MATRIX // 3
