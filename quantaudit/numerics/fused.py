"""Fake quantization of large tensors by compiled twins, into buffers that the caller keeps.

Pages of a fresh output cost more than the arithmetic, so `out` is worth reusing. A tensor is worked through in pieces
that stay in cache between measuring a group and rounding it; one compiled function serves every shape of a scheme and
dtype. Small tensors, schemes without a twin and machines without a compiler go through the reference, with equal bits.

Shape suffixes: see `twins`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Granularity, PerBlock, PerGroup, Scheme
from quantaudit.numerics.compiler import compile_exactly, record_failure, why_eager
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import fake_quantize
from quantaudit.numerics.twins import Twin, has_twin, make_twin

# Compiling takes seconds, the reference some 20 ns a value on one core: a smaller tensor is not worth the wait.
FUSED_MIN_ELEMENTS = 1 << 24
PIECE_ELEMENTS = 1 << 20


@torch.no_grad()
def fused_fake_quantize(
    x: Tensor, scheme: Scheme, out: Tensor | None = None, *, min_elements: int = FUSED_MIN_ELEMENTS
) -> Tensor:
    """Returns `fake_quantize(x, scheme)`, bit for bit, compiled where that pays.

    Args:
        x: [..., R, C] fp32 or bf16, as for the reference.
        scheme: Any scheme.
        out: Where the result goes: contiguous, of the shape, dtype and device of `x`, not sharing its memory.
        min_elements: Tensors with fewer elements never wait for a compiler.

    Raises:
        InputError: As the reference, and if `out` does not fit.
    """
    _check_out(x, out)
    target = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if x.numel() < min_elements or not _is_fusable(x, scheme) or not _run(x, scheme, target):
        target.copy_(fake_quantize(x, scheme))
    return target


def fused_status(device_type: str = "cpu") -> str:
    """Says in one sentence whether large tensors are quantized by compiled code on a kind of device, or why not."""
    reason = why_eager(device_type)
    if reason is None:
        return f"Tensors of at least {FUSED_MIN_ELEMENTS:,} values are quantized by compiled code on {device_type}."
    return f"Tensors are quantized by the eager reference on {device_type}, with equal bits: {reason}."


def _check_out(x: Tensor, out: Tensor | None) -> None:
    if out is None:
        return
    fits = out.shape == x.shape and out.dtype == x.dtype and out.device == x.device and out.is_contiguous()
    if not fits or out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise InputError(
            f"an output buffer of shape {list(out.shape)} and {out.dtype} on {out.device}",
            expected=f"a contiguous one of shape {list(x.shape)} and {x.dtype} on {x.device} with memory of its own",
            fix="allocate it once with torch.empty_like(x) and reuse it",
        )


def _is_fusable(x: Tensor, scheme: Scheme) -> bool:
    if not (has_twin(scheme) and x.is_contiguous() and why_eager(x.device.type) is None):
        return False
    cut = plan(tuple(x.shape), scheme.granularity)
    return cut.rows % cut.tile_rows == 0 and cut.cols % cut.tile_cols == 0


def _run(x: Tensor, scheme: Scheme, out: Tensor) -> bool:
    """Runs the compiled twin over all pieces; returns whether it could."""
    twin = _compiled_twin(scheme, x.dtype, x.device.type)
    sources, targets = _pieces(x, scheme.granularity), _pieces(out, scheme.granularity)
    try:
        for source, target in zip(sources, targets, strict=True):
            twin(source, target)
    except RuntimeError as error:  # whatever the compiler stumbles over derives from it
        record_failure(x.device.type, error)
        return False
    return True


@lru_cache(maxsize=64)
def _compiled_twin(scheme: Scheme, dtype: torch.dtype, device_type: str) -> Twin:
    name = f"twin_{scheme.arithmetic_digest[:12]}_{str(dtype).rpartition('.')[2]}_{device_type}"
    return compile_exactly(make_twin(scheme), name)


def _pieces(x: Tensor, granularity: Granularity) -> list[Tensor]:
    """Cuts a tensor into views for a twin: [G, N] of bounded size (on a CPU), or [K, B, L] for every row of blocks."""
    num_cols = x.shape[-1]
    if isinstance(granularity, PerBlock):
        blocks = x.view(-1, granularity.rows, num_cols // granularity.cols, granularity.cols)
        return [_with_dynamic(piece, 1) for piece in blocks.unbind(0)]
    groups_GN = x.view(-1, granularity.size if isinstance(granularity, PerGroup) else num_cols)
    if x.device.type != "cpu":
        return [_with_dynamic(groups_GN, 0)]
    per_piece = max(1, PIECE_ELEMENTS // groups_GN.shape[-1])
    return [_with_dynamic(piece, 0) for piece in groups_GN.split(per_piece)]


def _with_dynamic(view: Tensor, axis: int) -> Tensor:
    """Tells the compiler that the length of an axis varies."""
    torch._dynamo.maybe_mark_dynamic(view, axis)
    return view
