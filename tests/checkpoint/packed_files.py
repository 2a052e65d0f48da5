"""Packed checkpoints of the tiny model in every scheme that has a layout, and what their files hold."""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.checkpoint.names import ExpertStack, ExpertTensor, Part, Role
from quantaudit.checkpoint.packed import MODELOPT_NVFP4, PackedFormat, Packing
from quantaudit.checkpoint.reader import Checkpoint
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.numerics import QuantizedTensor, get_scheme, quantize
from tests.checkpoint.tiny import TINY, random_state

SCHEMES = {
    "mxfp4-rceil": PackedFormat.MXFP4,
    "mxfp8-e4m3-rceil": PackedFormat.MXFP8,
    "nvfp4": PackedFormat.MODELOPT_NVFP4,
    "int2-g32": PackedFormat.INTEGERS,
    "int3-g32": PackedFormat.INTEGERS,
    "int4-g32-div7.5": PackedFormat.INTEGERS,
    "int4-g32-div7.5-native": PackedFormat.INTEGERS,
    "int8-channel": PackedFormat.INTEGERS,
    "int8-g32-div127.5-recip-native": PackedFormat.INTEGERS,
    "fp8-block128": PackedFormat.FP8,
    "fp8-block128-ue8m0": PackedFormat.FP8,
    "fp8-channel": PackedFormat.FP8,
    "fp8-tensor": PackedFormat.FP8,
}
_FOLDERS = tempfile.TemporaryDirectory(prefix="packed-files-", ignore_cleanup_errors=True)
STACKS = tuple(ExpertStack(layer, role) for layer in (2, 4) for role in Role)


@lru_cache(maxsize=32)
def quantized_stacks(name: str) -> dict[ExpertStack, QuantizedTensor]:
    """Returns the random experts in a scheme."""
    state, scheme = random_state(), get_scheme(name)
    return {stack: quantize(state[stack.parameter], scheme) for stack in STACKS}


def write_packed(
    folder: Path,
    stacks: dict[ExpertStack, QuantizedTensor],
    *,
    shard_bytes: int | None = None,
    nvfp4: Packing = MODELOPT_NVFP4,
    is_partial: bool = False,
) -> Path:
    """Writes the random checkpoint, these stacks packed."""
    state: dict[str, Tensor | QuantizedTensor] = dict(random_state())
    state |= {stack.parameter: q for stack, q in stacks.items()}
    write_checkpoint(
        folder, TINY, state.items(), scheme=None, shard_bytes=shard_bytes, nvfp4=nvfp4, is_partial=is_partial
    )
    return folder


def with_divisors(stacks: dict[ExpertStack, QuantizedTensor]) -> dict[ExpertStack, QuantizedTensor]:
    """Returns stacks in NVFP4 whose upper scales are powers of two, which have a divisor."""
    for q in stacks.values():
        assert q.second_scales is not None
        q.second_scales.copy_(torch.exp2(torch.floor(torch.log2(q.second_scales))))
    return stacks


def files_of(checkpoint: Checkpoint, stack: ExpertStack, expert: int) -> dict[str, Tensor]:
    """Returns the tensors of one expert matrix by their names in the module."""
    names = {part: ExpertTensor(stack.layer, expert, stack.role, part).name for part in Part}
    return {part.value: checkpoint.read(name) for part, name in names.items() if name in checkpoint.index.tensors}


@lru_cache(maxsize=32)
def written_once(name: str) -> Path:
    """Returns a folder with the random checkpoint packed in a scheme, not to be changed; it goes with the process."""
    folder = Path(_FOLDERS.name) / name
    return write_packed(folder, quantized_stacks(name))


def copy_of(name: str, target: Path) -> Path:
    """Returns a copy of that folder, to be damaged."""
    return Path(shutil.copytree(written_once(name), target))
