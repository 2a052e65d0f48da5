"""Experts stored as one tensor a layer: each expert is a slice, gate and up are halves or alternate rows of it.

    gpt-oss, packed   experts.gate_up_proj_blocks U8 [E, 2I, G, 16], _scales U8 [E, 2I, G]: row 2i gate, row 2i + 1 up
    gpt-oss, plain    experts.gate_up_proj [E, H, 2I], transposed and interleaved likewise; down_proj [E, I, H]
    others            experts.gate_up_proj [E, 2I, H], the gate first; down_proj [E, H, I]

Blocks hold 32 codes, the low nibble first. Which way a plain tensor lies, the two shapes say between them: 2I is the
larger axis of one and twice an axis of the other. Interleaved are those that come with a bias, as gpt-oss has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from quantaudit.checkpoint.header import DType
from quantaudit.checkpoint.index import Located
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1
from quantaudit.core.scheme import Layout
from quantaudit.identity.layouts.logical import (
    ExpertRole,
    LogicalName,
    MatrixSource,
    expert_stack_name,
    parse_fused,
)
from quantaudit.identity.layouts.reading import FLOATS, read_slice
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix

GATE_UP, DOWN = "gate_up_proj", "down_proj"
_BLOCKS, _SCALES, _BIAS = "_blocks", "_scales", "_bias"
_BLOCK_BYTES, _BLOCK_CODES = 16, 32
_PACKING = Packing(
    element=E2M1, layout=Layout.LOW_NIBBLE_FIRST, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=_BLOCK_CODES
)


class Found(NamedTuple):
    """One expert's matrix in a fused tensor."""

    name: LogicalName
    source: MatrixSource


class _Lie(NamedTuple):
    """How a fused plain tensor lies: transposed or not, which rows of [out, in] a role takes."""

    is_transposed: bool
    rows: Mapping[ExpertRole, slice]


def take_fused(tensors: dict[str, Located]) -> list[Found]:
    """Takes the fused experts out of the tensors of a file and returns their matrices.

    Raises:
        InputError: If blocks lack their scales, or shapes contradict each other.
    """
    found: list[Found] = []
    for name in list(tensors):
        if name not in tensors:
            continue
        stem = name.removesuffix(_BLOCKS)
        if stem != name and (at := parse_fused(stem)) is not None:
            found += _packed(at, stem, tensors.pop(name), tensors.pop(stem + _SCALES, None))
        elif (at := parse_fused(name)) is not None and _is_stack(tensors[name]) and at[1] == GATE_UP:
            found += _plain(at[0], name, tensors)
    return found


def _is_stack(located: Located) -> bool:
    return len(located.entry.shape) == 3 and located.entry.dtype in FLOATS


def _packed(at: tuple[str, str], stem: str, blocks: Located, scales: Located | None) -> list[Found]:
    shape = blocks.entry.shape
    if scales is None:
        raise _contradiction(stem, f"{_BLOCKS} without {_SCALES}", "blocks and their scales")
    is_bytes = blocks.entry.dtype is scales.entry.dtype is DType.U8
    if not is_bytes or len(shape) != 4 or shape[3] != _BLOCK_BYTES or scales.entry.shape != shape[:3]:
        raise _contradiction(
            stem,
            f"blocks {blocks.entry.dtype} {list(shape)} and scales {scales.entry.dtype} {list(scales.entry.shape)}",
            "U8 [experts, out, groups, 16] and U8 [experts, out, groups]",
        )
    num_experts, num_rows, num_groups = shape[:3]
    if at[1] == GATE_UP and num_rows % 2:
        raise _contradiction(stem, f"{num_rows} rows", "an even number, gate and up in turn")
    halves = {ExpertRole.GATE: slice(0, None, 2), ExpertRole.UP: slice(1, None, 2)}
    roles = halves if at[1] == GATE_UP else {ExpertRole.DOWN: slice(None)}
    size = (num_rows // len(roles), num_groups * _BLOCK_CODES)
    num_bytes = (blocks.entry.num_bytes + scales.entry.num_bytes) // max(num_experts * len(roles), 1)

    def read(expert: int, rows: slice) -> StoredMatrix:
        codes = read_slice(blocks, expert).flatten(1)[rows]
        parts = {Part.CODES: codes, Part.SCALES: read_slice(scales, expert)[rows]}
        return StoredMatrix(encoding=Encoding.MXFP4, shape=size, parts=parts, packing=_PACKING)

    return [
        Found(
            LogicalName(expert_stack_name(at[0], role), expert),
            MatrixSource(
                label=f"{stem}[{expert}]",
                encoding=Encoding.MXFP4,
                storage="mxfp4, gpt-oss blocks" + (", gate and up interleaved" if at[1] == GATE_UP else ""),
                shape=size,
                num_bytes=num_bytes,
                read=partial(read, expert, rows),
            ),
        )
        for role, rows in roles.items()
        for expert in range(num_experts)
    ]


def _plain(layer: str, name: str, tensors: dict[str, Located]) -> list[Found]:
    stem = name.removesuffix(GATE_UP)
    down = tensors.get(stem + DOWN)
    if down is None or not _is_stack(down):
        return []
    is_transposed = _is_transposed(name, tensors[name].entry.shape, down.entry.shape)
    width = tensors[name].entry.shape[2 if is_transposed else 1]
    gate_up = _Lie(is_transposed, _halves(width, is_interleaved=name + _BIAS in tensors))
    down_lie = _Lie(is_transposed, {ExpertRole.DOWN: slice(None)})
    found = _slices(layer, name, tensors.pop(name), gate_up)
    return found + _slices(layer, stem + DOWN, tensors.pop(stem + DOWN), down_lie)


def _is_transposed(name: str, gate_up: tuple[int, ...], down: tuple[int, ...]) -> bool:
    """Tells which of [E, 2I, H] with [E, H, I] and [E, H, 2I] with [E, I, H] two shapes are."""
    if gate_up[0] == down[0]:
        if (gate_up[1], gate_up[2]) == (2 * down[2], down[1]):
            return False
        if (gate_up[2], gate_up[1]) == (2 * down[1], down[2]):
            return True
    raise _contradiction(
        name,
        f"the shape {list(gate_up)} beside {DOWN} {list(down)}",
        "[E, 2I, H] beside [E, H, I], or [E, H, 2I] beside [E, I, H]",
    )


def _halves(width: int, *, is_interleaved: bool) -> dict[ExpertRole, slice]:
    if is_interleaved:
        return {ExpertRole.GATE: slice(0, None, 2), ExpertRole.UP: slice(1, None, 2)}
    return {ExpertRole.GATE: slice(0, width // 2), ExpertRole.UP: slice(width // 2, width)}


def _slices(layer: str, name: str, located: Located, lie: _Lie) -> list[Found]:
    num_experts, first, second = located.entry.shape
    out, inner = (second, first) if lie.is_transposed else (first, second)
    size = (out // len(lie.rows), inner)

    def read(expert: int, rows: slice) -> StoredMatrix:
        stored: Tensor = read_slice(located, expert)
        numbers = (stored.T if lie.is_transposed else stored)[rows].contiguous()
        return StoredMatrix(encoding=Encoding.PLAIN, shape=size, parts={Part.NUMBERS: numbers})

    storage = str(FLOATS[located.entry.dtype]).removeprefix("torch.") + (", transposed" if lie.is_transposed else "")
    return [
        Found(
            LogicalName(expert_stack_name(layer, role), expert),
            MatrixSource(
                label=f"{name}[{expert}]",
                encoding=Encoding.PLAIN,
                storage=storage,
                shape=size,
                num_bytes=located.entry.num_bytes // (num_experts * len(lie.rows)),
                read=partial(read, expert, rows),
            ),
        )
        for role, rows in lie.rows.items()
        for expert in range(num_experts)
    ]


def _contradiction(stem: str, given: str, expected: str) -> InputError:
    return InputError(
        f"{shown(stem)} has {given}",
        expected=expected,
        fix="the export is damaged or mixed: write the checkpoint again",
    )
