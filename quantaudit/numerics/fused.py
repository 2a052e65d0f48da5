"""Fake quantization by the twins: eager at first, compiled once that pays, into buffers that the caller keeps.

The first compilation of a process takes some 15 s of one core, torch's compiler and the C++ compiler together. It is
worth its wait only where more than that would be spent without it, so the values of a twin (a scheme, a dtype and a
kind of device) are counted and go through eager tensor code first; compiled code takes over when eager code has cost
as much as compiling. Whoever quantizes little never meets a compiler: a whole audit of the embedded model stays at a
quarter. Nobody waits more than twice as long as the best choice in hindsight. Without a compiler, and for schemes
without a twin, eager code is all there is. The bits are the same.

A tensor is worked through in pieces that stay in cache between measuring a group and rounding it. Pages of a fresh
output cost more than the arithmetic, so `out` is worth reusing.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Granularity, PerBlock, PerGroup, Scheme
from quantaudit.numerics.compiler import compile_exactly, record_failure, why_eager
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import INPUT_DTYPES, fake_quantize
from quantaudit.numerics.twins import GroupScale, Twin, has_twin, make_twin

# About 20 s of eager code on one core, at 10 ns a value; compiled code takes 1.5.
COMPILE_AFTER = 1 << 31
# Temporaries of eager code fit the second-level cache; a compiled piece is worth the 25 us of calling it.
EAGER_PIECE = 1 << 17
COMPILED_PIECE = 1 << 20

_num_eager: Counter[tuple[Scheme, torch.dtype, str]] = Counter()


@torch.no_grad()
def fused_fake_quantize(
    x: Tensor, scheme: Scheme, out: Tensor | None = None, *, compile_after: int = COMPILE_AFTER
) -> Tensor:
    """Returns `fake_quantize(x, scheme)`, bit for bit, some times faster.

    Args:
        x: [..., R, C] fp32 or bf16, as for the reference.
        scheme: Any scheme.
        out: Where the result goes: contiguous, of the shape, dtype and device of `x`, not sharing its memory.
        compile_after: Values that this twin quantizes eagerly in this process before a compiler is called.

    Raises:
        InputError: As the reference, and if `out` does not fit.
    """
    _check_out(x, out)
    target = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if not _is_covered(x, scheme):
        return target.copy_(fake_quantize(x, scheme))
    device = x.device.type
    seen = (scheme, x.dtype, device)
    if _num_eager[seen] >= compile_after and why_eager(device) is None and _run_compiled(x, scheme, target):
        return target
    _num_eager[seen] += x.numel()
    _run(_eager_twin(scheme), x, target, scheme.granularity, EAGER_PIECE)
    return target


def fused_status(device_type: str = "cpu") -> str:
    """Says in one sentence whether compiled code takes over on a kind of device, or why not."""
    reason = why_eager(device_type)
    if reason is None:
        return f"Compiled code quantizes on {device_type} after {COMPILE_AFTER:,} values of one scheme."
    return f"Eager code quantizes on {device_type}, with equal bits: {reason}."


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


def _is_covered(x: Tensor, scheme: Scheme) -> bool:
    """Returns whether there is a twin, and the tensor is contiguous, of a known dtype and of whole blocks only."""
    cut = plan(tuple(x.shape), scheme.granularity)
    if not (has_twin(scheme) and x.is_contiguous() and x.dtype in INPUT_DTYPES and x.numel()):
        return False
    return cut.rows % cut.tile_rows == 0 and cut.cols % cut.tile_cols == 0


def _run_compiled(x: Tensor, scheme: Scheme, out: Tensor) -> bool:
    """Runs the compiled twin; returns whether it could."""
    try:
        _run(_compiled_twin(scheme, x.dtype, x.device.type), x, out, scheme.granularity, COMPILED_PIECE)
    except RuntimeError as error:  # whatever the compiler stumbles over derives from it
        record_failure(x.device.type, error)
        return False
    return True


def _run(twin: Twin, x: Tensor, out: Tensor, granularity: Granularity, piece: int) -> None:
    if x.device.type != "cpu":
        piece = x.numel()  # an accelerator has no use for pieces that fit a cache
    for source, target in zip(_pieces(x, granularity, piece), _pieces(out, granularity, piece), strict=True):
        twin(source, target)


@lru_cache(maxsize=64)
def _eager_twin(scheme: Scheme) -> Twin:
    return make_twin(scheme)


@lru_cache(maxsize=64)
def _compiled_twin(scheme: Scheme, dtype: torch.dtype, device_type: str) -> Twin:
    name = f"twin_{scheme.arithmetic_digest[:12]}_{str(dtype).rpartition('.')[2]}_{device_type}"
    compiled = compile_exactly(make_twin(scheme), name)
    varying = 1 if isinstance(scheme.granularity, PerBlock) else 0

    def call(x: Tensor, out: Tensor) -> GroupScale:
        # One compiled function serves all lengths of this axis.
        for view in (x, out):
            torch._dynamo.maybe_mark_dynamic(view, varying)
        return compiled(x, out)

    return call


def _pieces(x: Tensor, granularity: Granularity, piece: int) -> list[Tensor]:
    """Cuts a tensor into views for a twin: [G, N] of at most `piece` values, or a [K, B, L] for every row of blocks."""
    num_cols = x.shape[-1]
    if isinstance(granularity, PerBlock):
        return list(x.view(-1, granularity.rows, num_cols // granularity.cols, granularity.cols).unbind(0))
    groups_GN = x.view(-1, granularity.size if isinstance(granularity, PerGroup) else num_cols)
    return list(groups_GN.split(max(1, piece // groups_GN.shape[-1])))
