"""Reading is lazy in the memory that the system counts, not only in what Python's allocator sees."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quantaudit.numerics import get_scheme
from tests.checkpoint.tiny import TINY, save

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc"),
]

WIDTH, EXPERTS, LAYERS = 256, 64, 7
BIG = replace(
    TINY,
    num_hidden_layers=LAYERS,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    num_experts=EXPERTS,
    moe_intermediate_size=WIDTH,
    routed_expert_hidden_size=WIDTH,
    linear_attn_config=replace(TINY.linear_attn_config, full_attn_layers=(2, LAYERS)),
)
WEIGHTS_OF_A_STACK = EXPERTS * WIDTH * WIDTH
STACK = 2 * WEIGHTS_OF_A_STACK  # bf16
ALL_STACKS = 3 * (LAYERS - 1) * STACK
PACKED = ALL_STACKS * 17 // 64  # 4 bits a weight and 8 a group of 32, against 16 bits a weight

# `getrusage` would begin at the peak of the parent; the peak of the process itself is in /proc.
_PRELUDE = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.names import expert_stacks
from quantaudit.engines.opening import open_realization, open_served
from quantaudit.model.lm import LanguageModel
def peak():
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM:")).split()[1])
checkpoint = open_checkpoint(Path(sys.argv[1]))
first, *others = expert_stacks(checkpoint.config)
checkpoint.expert_stack(*first)
with torch.device("meta"):
    LanguageModel(checkpoint.config)  # torch imports what it needs for that
before = peak()
"""
_READ = "for stack in others: checkpoint.expert_stack(*stack)\n"
_KEEP = "kept = [checkpoint.expert_stack(*stack) for stack in others]\n"
_SERVE = "lo = open_served(checkpoint, torch.device('cpu'))\n"
_DECODE = "hi = open_realization(checkpoint, torch.device('cpu'))\n"


def growth(folder: Path, body: str) -> int:
    """Returns by how many bytes the peak of a fresh process grows while it runs the body.

    Large blocks are mapped, so that what the code frees is given back: left to itself the C library keeps 0 or 32 MB of
    them from run to run, and it is the code that is measured.
    """
    code = f"{_PRELUDE}{body}print(peak() - before)"
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    run = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False, env=env
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 150 MB of experts in bf16, and the same packed."""
    root = tmp_path_factory.mktemp("big")
    save(root / "plain", config=BIG)
    save(root / "packed", config=BIG, scheme=get_scheme("mxfp4-even"))
    return root


def test_reading_stack_after_stack_holds_one(folders: Path) -> None:
    # The first stack was read before: what is freed serves the next, and a second one is the allocator's to keep.
    assert growth(folders / "plain", _READ) < 2 * STACK
    assert growth(folders / "plain", _KEEP) > ALL_STACKS - 2 * STACK, "the measure sees what is held"


def test_lo_is_opened_in_the_memory_of_its_packed_weights(folders: Path) -> None:
    # Beside the packed stacks: the unpacked codes of one, a byte a weight, and as much again while they are packed.
    served = growth(folders / "packed", _SERVE)
    assert PACKED - 2 * STACK < served < PACKED + 3 * STACK < ALL_STACKS // 2
    assert growth(folders / "packed", _DECODE) > ALL_STACKS
