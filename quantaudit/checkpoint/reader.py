"""A checkpoint on disk, opened without reading a tensor, then read one tensor at a time.

Legend: E experts, O out, I in, G groups of 32 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.declared import Declared
from quantaudit.checkpoint.file_range import read_range
from quantaudit.checkpoint.header import DType
from quantaudit.checkpoint.index import TensorIndex, read_index
from quantaudit.checkpoint.layout import check_layout
from quantaudit.checkpoint.names import (
    GROUP_SIZE,
    ExpertStack,
    ExpertTensor,
    Part,
    Role,
    Slot,
    expert_shape,
    expert_stacks,
)
from quantaudit.checkpoint.precision import PrecisionMap, map_precision
from quantaudit.checkpoint.storage import Storage, storage_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Layout, Scheme
from quantaudit.model.config import ModelConfig
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, unpack

# Codes and scale bytes decode alike under every scale rule; which rule chose them is not written in the file.
PACKED_SCHEME = "mxfp4-even"
TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.U8: torch.uint8}
_NAN_SCALE = 255
# From this scale byte on, 4 * 2^(byte - 127) leaves the range of bf16.
_OVERFLOWING_SCALE = 253


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint: checked against its configuration, nothing read.

    Attributes:
        path: The folder.
        config: The model.
        declared: The quantization it declares.
        index: Where every tensor lies.
        precision: What its experts really are stored in.
        packed_scheme: The scheme that packed experts are given: its element, groups and scale format are those of the
            file, its scale rule is an assumption that decoding does not depend on.
    """

    path: Path
    config: ModelConfig
    declared: Declared | None
    index: TensorIndex
    precision: PrecisionMap
    packed_scheme: Scheme

    def read(self, name: str) -> Tensor:
        """Reads one tensor by its name on disk, as stored.

        Raises:
            InputError: If there is none, it has a dtype outside the layout, or it holds NaN or infinity.
        """
        located = self.index.tensors.get(name)
        if located is None:
            raise InputError(
                f"the tensor name {shown(name)}", expected=f"a tensor of {self.path}", fix="check the name"
            )
        entry = located.entry
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype is None:
            raise InputError(
                f"{shown(name)} is stored as {entry.dtype}", expected="BF16, F32 or U8", fix="read another"
            )
        if entry.num_bytes == 0:
            return torch.empty(entry.shape, dtype=dtype)
        tensor = torch.frombuffer(read_range(located.file, entry.start, entry.num_bytes), dtype=dtype)
        return check_finite(tensor.reshape(entry.shape), f"{name} in {located.file}")

    def read_slot(self, slot: Slot) -> Tensor:
        """Reads a parameter that is one tensor on disk; zeros that pad it are checked and dropped.

        Raises:
            InputError: As for `read`, or if the padding is not zero.
        """
        stored = self.read(slot.name)
        if not slot.is_padded:
            return stored
        kept, padding = stored[: slot.shape[0]], stored[slot.shape[0] :]
        if padding.count_nonzero():
            raise InputError(
                f"{slot.name} has {int(padding.count_nonzero())} values other than zero behind its {len(kept)} heads",
                expected="zeros as padding",
                fix="use the config.json of this checkpoint, or check linear_attn_config.num_heads",
            )
        return kept.clone()

    def expert(self, layer: int, expert: int, role: Role) -> Tensor | QuantizedTensor:
        """Reads one expert matrix: `[O, I]` bf16 or fp32 as stored, or its codes and scales.

        Raises:
            InputError: If it holds NaN or infinity, or decodes to one.
        """
        if storage_of(self.index, layer, expert, role) is not Storage.PACKED:
            return self.read(ExpertTensor(layer, expert, role, Part.WEIGHT).name)
        name = ExpertTensor(layer, expert, role, Part.PACKED).name
        codes_OI = unpack(self.read(name), Layout.LOW_NIBBLE_FIRST)
        scales_OG = self.read(ExpertTensor(layer, expert, role, Part.SCALE).name)
        return check_packed(self._quantized(codes_OI, scales_OG), name)

    def packed_stacks(self) -> tuple[ExpertStack, ...]:
        """Returns the stacks of which every matrix is stored packed; the index says so, no tensor is read."""
        return tuple(stack for stack in expert_stacks(self.config) if self._is_packed(stack.layer, stack.role))

    def expert_stack(self, layer: int, role: Role) -> Tensor | QuantizedTensor:
        """Reads the experts of one layer and role, stacked.

        Returns:
            Codes `[E, O, I]` and scales `[E, O, G]` if all of them are packed; else `[E, O, I]` bf16, or fp32 if one
            is stored so, packed ones among them decoded exactly.

        Raises:
            InputError: If one holds NaN or infinity, or decodes to one.
        """
        if not self._is_packed(layer, role):
            return self.decoded_stack(layer, role)
        experts = range(self.config.num_experts)
        rows, cols = expert_shape(self.config, role)
        codes_EOI = torch.empty(len(experts), rows, cols, dtype=torch.uint8)
        scales_EOG = torch.empty(len(experts), rows, cols // GROUP_SIZE, dtype=torch.uint8)
        for e in experts:
            matrix = self.expert(layer, e, role)
            assert isinstance(matrix, QuantizedTensor)
            codes_EOI[e], scales_EOG[e] = matrix.codes, matrix.scales
        return self._quantized(codes_EOI, scales_EOG)

    def decoded_stack(self, layer: int, role: Role) -> Tensor:
        """Reads the experts of one layer and role as `[E, O, I]` bf16 (fp32 if one is stored so), decoded one by one.

        Raises:
            InputError: If one holds NaN or infinity, or decodes to one.
        """
        experts = range(self.config.num_experts)
        is_wide = any(self._is_float32(ExpertTensor(layer, e, role, Part.WEIGHT).name) for e in experts)
        dtype = torch.float32 if is_wide else torch.bfloat16
        stack_EOI = torch.empty(len(experts), *expert_shape(self.config, role), dtype=dtype)
        for e in experts:
            matrix = self.expert(layer, e, role)
            stack_EOI[e] = dequantize(matrix) if isinstance(matrix, QuantizedTensor) else matrix
        return stack_EOI

    def _is_packed(self, layer: int, role: Role) -> bool:
        experts = range(self.config.num_experts)
        return all(storage_of(self.index, layer, e, role) is Storage.PACKED for e in experts)

    def _is_float32(self, name: str) -> bool:
        located = self.index.tensors.get(name)
        return located is not None and located.entry.dtype is DType.F32

    def _quantized(self, codes: Tensor, scales: Tensor) -> QuantizedTensor:
        return QuantizedTensor(
            codes=codes,
            scales=scales,
            second_scales=None,
            offset=None,
            shape=tuple(codes.shape),
            dtype=torch.bfloat16,
            scheme=self.packed_scheme,
        )


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint folder: configuration, headers, and both against each other; no tensor is read.

    Raises:
        InputError: If anything is missing, damaged, contradictory or not implemented.
    """
    index = read_index(path)
    config = read_config(path)
    check_layout(index, config.model)
    return Checkpoint(
        path=path,
        config=config.model,
        declared=config.declared,
        index=index,
        precision=map_precision(index, config),
        packed_scheme=get_scheme(PACKED_SCHEME),
    )


def check_finite(tensor: Tensor, name: str) -> Tensor:
    """Returns the tensor if it holds neither NaN nor infinity.

    Raises:
        InputError: Otherwise; names the tensor and counts them.
    """
    if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return tensor
    count = tensor.numel() - int(tensor.isfinite().sum())
    raise InputError(
        f"{name} holds {count} values that are NaN or infinite",
        expected="finite weights",
        fix="train or export it again",
    )


def check_packed(matrix: QuantizedTensor, name: str) -> QuantizedTensor:
    """Returns packed experts if every weight decodes to a finite bf16.

    Raises:
        InputError: Otherwise; names the tensor and counts the scales or values.
    """
    largest = int(matrix.scales.max())
    if largest == _NAN_SCALE:
        raise InputError(
            f"{name} has {int((matrix.scales == _NAN_SCALE).sum())} scales of {_NAN_SCALE}, which is NaN",
            expected="scale bytes from 0 to 254",
            fix="export the expert again",
        )
    if largest >= _OVERFLOWING_SCALE:
        check_finite(dequantize(matrix), f"{name}, decoded to bf16,")
    return matrix
