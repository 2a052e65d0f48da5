"""Writes safetensors files whose bytes depend on nothing but the tensors.

Tensors lie in the order of falling element size, then name, behind a header padded to eight bytes, so that each one is
aligned; that is the order of the safetensors library too. The file is flushed to the disk before the function returns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.checkpoint.packed import Packing
from quantaudit.checkpoint.reader import TORCH_DTYPES
from quantaudit.core.serial import Json

_ALIGNMENT = 8
_TAGS = {dtype: tag for tag, dtype in TORCH_DTYPES.items()}


class NamedTensor(NamedTuple):
    """A tensor, its name on disk, and how the expert is packed that it is a part of (`None` where it is not)."""

    name: str
    tensor: Tensor
    packing: Packing | None = None

    @property
    def num_bytes(self) -> int:
        """Returns the size of the elements."""
        return self.tensor.numel() * self.tensor.element_size()


def write_safetensors(path: Path, tensors: Sequence[NamedTensor]) -> None:
    """Writes one file of tensors of the dtypes that are read and waits until it is on the disk."""
    ordered = sorted(tensors, key=lambda t: (-t.tensor.element_size(), t.name))
    header = _header(ordered)
    with path.open("xb") as stream:
        stream.write(len(header).to_bytes(8, "little"))
        stream.write(header)
        for named in ordered:
            stream.write(raw_bytes(named.tensor))
        stream.flush()
        os.fsync(stream.fileno())


def raw_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor in row-major order, without a copy if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def dtype_tag(tensor: Tensor) -> str:
    """Returns the name of the tensor's dtype in the format."""
    return _TAGS[tensor.dtype].value


def _header(ordered: Sequence[NamedTensor]) -> bytes:
    fields: dict[str, Json] = {"__metadata__": {"format": "pt"}}
    position = 0
    for named in ordered:
        end = position + named.num_bytes
        shape: list[Json] = list(named.tensor.shape)
        fields[named.name] = {"dtype": dtype_tag(named.tensor), "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)
