"""Tensors of a gguf file as logical tensors: F32, F16, BF16, MXFP4, Q4_0 and Q8_0; other types keep their bytes.

    MXFP4  17 bytes for 32 values: E8M0, then code j in the low and code j + 16 in the high nibble of byte j
    Q4_0   18 bytes for 32 values: an fp16 scale, then value + 8 in the same order
    Q8_0   34 bytes for 32 values: an fp16 scale, then 32 int8

Names are those of llama.cpp; the common ones are translated, `blk.2.ffn_gate_exps` being `layers.2.experts.gate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.checkpoint.file_range import read_range
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1, INT4, INT8
from quantaudit.core.scheme import Layout
from quantaudit.identity.layouts.fused import Found
from quantaudit.identity.layouts.gguf_header import GgufTensor, read_gguf_header
from quantaudit.identity.layouts.logical import DENSE, ExpertRole, LogicalName, MatrixSource, expert_stack_name
from quantaudit.identity.layouts.reading import as_rows
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix


class _Type(IntEnum):
    """Numbers of the types that are read."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q8_0 = 8
    BF16 = 30
    MXFP4 = 39


class _Blocks(NamedTuple):
    """A block type: its encoding and packing, its bytes, and how many of them are the scale."""

    encoding: Encoding
    packing: Packing
    block_bytes: int
    scale_bytes: int


_GROUP = 32
_PLAIN = {_Type.F32: torch.float32, _Type.F16: torch.float16, _Type.BF16: torch.bfloat16}
_QUANTIZED = {
    _Type.MXFP4: _Blocks(
        Encoding.MXFP4,
        Packing(element=E2M1, layout=Layout.GGML_SPLIT, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=_GROUP),
        17,
        1,
    ),
    _Type.Q4_0: _Blocks(
        Encoding.INT4,
        Packing(element=INT4, layout=Layout.GGML_SPLIT, scale=ScaleKind.FLOAT, tile_rows=1, tile_cols=_GROUP),
        18,
        2,
    ),
    _Type.Q8_0: _Blocks(
        Encoding.INT8,
        Packing(element=INT8, layout=Layout.BYTES, scale=ScaleKind.FLOAT, tile_rows=1, tile_cols=_GROUP),
        34,
        2,
    ),
}

_BLOCK_NAME = re.compile(r"blk\.([0-9]{1,6})\.(.+)\.(weight|bias)")
_EXPERTS = {"ffn_gate_exps": ExpertRole.GATE, "ffn_up_exps": ExpertRole.UP, "ffn_down_exps": ExpertRole.DOWN}
_OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path) -> list[Found]:
    """Returns the tensors of a file; reads its header.

    Raises:
        InputError: If it is damaged, or a tensor does not have the bytes that its type and shape take.
    """
    return [found for tensor in read_gguf_header(path) for found in _found(path, tensor)]


def _found(path: Path, tensor: GgufTensor) -> list[Found]:
    block = _BLOCK_NAME.fullmatch(tensor.name)
    if block is not None and block[2] in _EXPERTS and len(tensor.shape) == 3:
        name = expert_stack_name(f"layers.{block[1]}.", _EXPERTS[block[2]])
        return [Found(LogicalName(name, e), _source(path, tensor, e)) for e in range(tensor.shape[0])]
    if block is not None and block[2] in _INSIDE:
        name = f"layers.{block[1]}.{_INSIDE[block[2]]}.{block[3]}"
    else:
        stem, _, last = tensor.name.rpartition(".")
        name = f"{_OUTSIDE[stem]}.{last}" if stem in _OUTSIDE else tensor.name
    return [Found(LogicalName(name, DENSE), _source(path, tensor, DENSE))]


def _source(path: Path, tensor: GgufTensor, expert: int) -> MatrixSource:
    shape = tensor.shape if expert == DENSE else tensor.shape[1:]
    label = tensor.name if expert == DENSE else f"{tensor.name}[{expert}]"
    number = tensor.type_number
    read: Callable[[Tensor, tuple[int, int]], StoredMatrix]
    if number in _PLAIN:
        dtype = _PLAIN[_Type(number)]
        size = math.prod(shape) * dtype.itemsize
        encoding, storage, read = Encoding.PLAIN, str(dtype).removeprefix("torch."), partial(_read_plain, dtype)
    elif number in _QUANTIZED:
        blocks = _QUANTIZED[_Type(number)]
        if shape[-1] % _GROUP:
            raise _wrong_size(path, tensor, f"a last axis that is a multiple of {_GROUP}")
        size = math.prod(shape) // _GROUP * blocks.block_bytes
        encoding, storage = blocks.encoding, f"{blocks.encoding}, gguf {_Type(number).name} blocks"
        read = partial(_read_blocks, blocks)
    else:
        size = tensor.num_bytes // (1 if expert == DENSE else tensor.shape[0])
        encoding, storage, read = Encoding.UNKNOWN, f"{Encoding.UNKNOWN}, gguf type {number}", _read_unknown
    start = tensor.start + max(expert, 0) * size
    if start + size > tensor.start + tensor.num_bytes:
        raise _wrong_size(path, tensor, f"{size} bytes for {list(shape)}")
    return MatrixSource(
        label=label,
        encoding=encoding,
        storage=storage,
        shape=shape,
        num_bytes=size,
        read=lambda: read(_bytes(path, start, size), as_rows(shape)),
    )


def _bytes(path: Path, start: int, size: int) -> Tensor:
    return torch.frombuffer(read_range(path, start, size), dtype=torch.uint8) if size else torch.empty(0).byte()


def _read_plain(dtype: torch.dtype, raw: Tensor, shape: tuple[int, int]) -> StoredMatrix:
    return StoredMatrix(encoding=Encoding.PLAIN, shape=shape, parts={Part.NUMBERS: raw.view(dtype).reshape(shape)})


def _read_blocks(blocks: _Blocks, raw: Tensor, shape: tuple[int, int]) -> StoredMatrix:
    rows, cols = shape
    blocks_RGB = raw.reshape(rows, cols // _GROUP, blocks.block_bytes)
    codes = blocks_RGB[:, :, blocks.scale_bytes :].flatten(1)
    scales = blocks_RGB[:, :, : blocks.scale_bytes].contiguous()
    is_half = blocks.packing.scale is ScaleKind.FLOAT
    parts = {
        Part.CODES: codes.view(torch.int8) if blocks.packing.layout is Layout.BYTES else codes,
        Part.SCALES: (scales.view(torch.float16) if is_half else scales).squeeze(-1),
    }
    return StoredMatrix(encoding=blocks.encoding, shape=shape, parts=parts, packing=blocks.packing)


def _read_unknown(raw: Tensor, shape: tuple[int, int]) -> StoredMatrix:
    return StoredMatrix(encoding=Encoding.UNKNOWN, shape=(1, raw.numel()), parts={Part.NUMBERS: raw.reshape(1, -1)})


def _wrong_size(path: Path, tensor: GgufTensor, expected: str) -> InputError:
    return InputError(
        f"{path} has {tensor.num_bytes} bytes for {shown(tensor.name)} of shape {list(tensor.shape)}",
        expected=expected,
        fix="the file is damaged: write it again",
    )
