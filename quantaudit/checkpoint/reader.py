"""A checkpoint on disk, opened without reading a tensor, then read one tensor at a time.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.declared import Declared
from quantaudit.checkpoint.file_range import read_range
from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.index import TensorIndex, read_index
from quantaudit.checkpoint.layout import check_layout
from quantaudit.checkpoint.names import (
    ExpertStack,
    ExpertTensor,
    Part,
    Role,
    Slot,
    expert_shape,
    expert_stacks,
)
from quantaudit.checkpoint.packed import PackedFormat, Packing, find_packing
from quantaudit.checkpoint.packed_tensors import decode_parts, find_multiplier, scheme_of
from quantaudit.checkpoint.precision import PrecisionMap, map_precision
from quantaudit.checkpoint.storage import Storage, classify, entries_of, storage_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.core.format import E4M3
from quantaudit.core.scheme import ExponentScale
from quantaudit.model.config import ModelConfig
from quantaudit.numerics import QuantizedTensor, dequantize
from quantaudit.numerics.reference import decode_scales

TORCH_DTYPES = {
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.U8: torch.uint8,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F8_E4M3: torch.float8_e4m3fn,
}
_NAN_SCALE, _NAN_CODE, _MAGNITUDE = 255, 127, 127
# From this scale byte on, 4 * 2^(byte - 127) leaves the range of bf16.
_OVERFLOWING_SCALE = 253
# And 256 * 2^(byte - 127) that of fp32.
_OVERFLOWING_FLOAT8 = 247


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint: checked against its configuration, nothing read.

    Attributes:
        path: The folder.
        config: The model.
        declared: The quantization it declares.
        index: Where every tensor lies.
        precision: What its experts really are stored in.
    """

    path: Path
    config: ModelConfig
    declared: Declared | None
    index: TensorIndex
    precision: PrecisionMap

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
                f"{shown(name)} is stored as {entry.dtype}", expected=", ".join(TORCH_DTYPES), fix="read another"
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

        The scheme of a packed one has the element, groups and scale format of the file; its scale rule is an
        assumption that decoding does not depend on.

        Raises:
            InputError: If it holds NaN or infinity, or decodes to one.
        """
        if storage_of(self.index, layer, expert, role) is not Storage.PACKED:
            return self.read(ExpertTensor(layer, expert, role, Part.WEIGHT).name)
        return self._packed_expert(
            layer, expert, role, is_folded=self._is_folded(layer, role, range(expert, expert + 1))
        )

    def packed_stacks(self) -> tuple[ExpertStack, ...]:
        """Returns the stacks of which every matrix is stored packed; the index says so, no tensor is read."""
        return tuple(stack for stack in expert_stacks(self.config) if self._is_packed(stack.layer, stack.role))

    def expert_stack(self, layer: int, role: Role) -> Tensor | QuantizedTensor:
        """Reads the experts of one layer and role, stacked.

        Returns:
            Codes and scales if all of them are packed in one way; else `[E, O, I]` bf16, or fp32 if one is stored so
            or needs it, packed ones among them decoded exactly.

        Raises:
            InputError: If one holds NaN or infinity, or decodes to one.
        """
        if not self._is_packed(layer, role):
            return self.decoded_stack(layer, role)
        experts = range(self.config.num_experts)
        is_folded = self._is_folded(layer, role, experts)
        first = self._packed_expert(layer, 0, role, is_folded=is_folded)
        stack = _room_like(first, len(experts))
        for e in experts:
            matrix = first if e == 0 else self._packed_expert(layer, e, role, is_folded=is_folded)
            stack.codes[e], stack.scales[e] = matrix.codes, matrix.scales
            if stack.second_scales is not None:
                assert matrix.second_scales is not None
                stack.second_scales[e] = matrix.second_scales
        return stack

    def decoded_stack(self, layer: int, role: Role) -> Tensor:
        """Reads the experts of one layer and role as `[E, O, I]`, decoded one by one.

        They are bf16, or fp32 if one is stored so, or in codes that bf16 does not hold exactly.

        Raises:
            InputError: If one holds NaN or infinity, or decodes to one.
        """
        experts = range(self.config.num_experts)
        is_wide = any(self._needs_float32(layer, e, role) for e in experts)
        dtype = torch.float32 if is_wide else torch.bfloat16
        stack_EOI = torch.empty(len(experts), *expert_shape(self.config, role), dtype=dtype)
        for e in experts:
            matrix = self.expert(layer, e, role)
            stack_EOI[e] = dequantize(matrix, dtype) if isinstance(matrix, QuantizedTensor) else matrix
        return stack_EOI

    def _is_packed(self, layer: int, role: Role) -> bool:
        experts = range(self.config.num_experts)
        entries = [entries_of(self.index, layer, e, role) for e in experts]
        return all(classify(one) is Storage.PACKED for one in entries) and (
            len({self._packing(role, one) for one in entries}) == 1
        )

    def _needs_float32(self, layer: int, expert: int, role: Role) -> bool:
        entries = entries_of(self.index, layer, expert, role)
        if classify(entries) is Storage.PACKED:
            return self._packing(role, entries).format is not PackedFormat.MXFP4
        return Part.WEIGHT in entries and entries[Part.WEIGHT].dtype is DType.F32

    def _packing(self, role: Role, entries: dict[Part, TensorEntry]) -> Packing:
        known = () if self.declared is None else self.declared.packings
        return find_packing(entries, *expert_shape(self.config, role), known)

    def _is_folded(self, layer: int, role: Role, experts: range) -> bool:
        """Tells whether an upper scale of one of these is a divisor that no multiplier stands for."""
        for e in experts:
            if Part.GLOBAL not in entries_of(self.index, layer, e, role):
                continue
            divisor = self.read(ExpertTensor(layer, e, role, Part.GLOBAL).name)
            scales = self.read(ExpertTensor(layer, e, role, Part.SCALE).name).view(torch.uint8)
            if find_multiplier(divisor, scales) is None:
                return True
        return False

    def _packed_expert(self, layer: int, expert: int, role: Role, *, is_folded: bool) -> QuantizedTensor:
        entries = entries_of(self.index, layer, expert, role)
        packing, shape = self._packing(role, entries), expert_shape(self.config, role)
        parts: dict[Part, Tensor] = {
            Part.SCALE if part is Part.SCALE_INV else part: self.read(e.name) for part, e in entries.items()
        }
        name = ExpertTensor(layer, expert, role, Part.PACKED if Part.PACKED in entries else Part.WEIGHT).name
        if Part.SHAPE in parts and parts[Part.SHAPE].tolist() != list(shape):
            raise InputError(
                f"{entries[Part.SHAPE].name} says {parts[Part.SHAPE].tolist()}",
                expected=f"{list(shape)}",
                fix="use the config.json of this checkpoint",
            )
        codes, scales, above = decode_parts(parts, packing, shape, is_folded=is_folded)
        matrix = QuantizedTensor(
            codes=codes,
            scales=scales,
            second_scales=above,
            offset=None,
            shape=shape,
            dtype=torch.bfloat16 if packing.format is PackedFormat.MXFP4 else torch.float32,
            scheme=scheme_of(packing, is_folded=is_folded),
        )
        return check_packed(matrix, name)


def _room_like(matrix: QuantizedTensor, count: int) -> QuantizedTensor:
    """Returns a stack to be filled with matrices like this one."""
    above = matrix.second_scales
    return replace(
        matrix,
        codes=matrix.codes.new_empty(count, *matrix.codes.shape),
        scales=matrix.scales.new_empty(count, *matrix.scales.shape),
        second_scales=None if above is None else above.new_empty(count, *above.shape),
        shape=(count, *matrix.shape),
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint folder: configuration, headers, and both against each other; no tensor is read.

    Raises:
        InputError: If anything is missing, damaged, contradictory or not implemented.
    """
    index = read_index(path)
    config = read_config(path)
    check_layout(index, config.model, config.declared)
    return Checkpoint(
        path=path,
        config=config.model,
        declared=config.declared,
        index=index,
        precision=map_precision(index, config),
    )


def check_finite(tensor: Tensor, name: str) -> Tensor:
    """Returns the tensor if it holds neither NaN nor infinity.

    Raises:
        InputError: Otherwise; names the tensor and counts them.
    """
    # Of 8-bit floats nothing is a weight yet: what they decode to is looked at.
    if not tensor.is_floating_point() or tensor.itemsize == 1 or bool(tensor.isfinite().all()):
        return tensor
    count = tensor.numel() - int(tensor.isfinite().sum())
    raise InputError(
        f"{name} holds {count} values that are NaN or infinite",
        expected="finite weights",
        fix="train or export it again",
    )


def check_packed(matrix: QuantizedTensor, name: str) -> QuantizedTensor:
    """Returns packed experts if every weight decodes to a finite number of their dtype.

    Raises:
        InputError: Otherwise; names the tensor and counts the scales or values.
    """
    if not isinstance(matrix.scheme.scale, ExponentScale):
        if not _must_be_finite(matrix):
            check_finite(dequantize(matrix), f"{name}, decoded to {str(matrix.dtype).removeprefix('torch.')},")
        return matrix
    largest = int(matrix.scales.max())
    if largest == _NAN_SCALE:
        raise InputError(
            f"{name} has {int((matrix.scales == _NAN_SCALE).sum())} scales of {_NAN_SCALE}, which is NaN",
            expected="scale bytes from 0 to 254",
            fix="export the expert again",
        )
    is_float8 = matrix.scheme.element == E4M3
    if largest >= (_OVERFLOWING_FLOAT8 if is_float8 else _OVERFLOWING_SCALE) or (is_float8 and _has_nan_code(matrix)):
        dtype = "bf16" if matrix.dtype is torch.bfloat16 else "fp32"
        check_finite(dequantize(matrix), f"{name}, decoded to {dtype},")
    return matrix


def _must_be_finite(matrix: QuantizedTensor) -> bool:
    """Tells, without decoding, that no value can be NaN or infinite."""
    largest = decode_scales(matrix).abs().amax() * matrix.scheme.element.max
    return bool(largest.isfinite()) and not (matrix.scheme.element == E4M3 and _has_nan_code(matrix))


def _has_nan_code(matrix: QuantizedTensor) -> bool:
    return bool(((matrix.codes & _MAGNITUDE) == _NAN_CODE).any())
