"""Rounds a stack of experts so that errors cancel on the inputs it has seen (GPTQ), by the code of nvidia-modelopt.

Rounding to nearest minimises ||W - Q||, but a layer's output sees (W - Q) X. GPTQ rounds column after column and moves
what each lost into the columns that are still to come, along the inverse of the Hessian of ||(W - Q) X||^2:

    H = (2 / n) X X^T,   U upper triangular with U^T U = (H + d mean(diag H) 1)^-1
    q_i = Q(w_i),   w_j <- w_j - (w_i - q_i) U_ij / U_ii   for j > i

Hessian, factor and column loop are the library's, and Q is ours: the nearest code of a scheme of the catalogue under
the scales that the scheme measures on the whole matrix. So the result differs from round-to-nearest in codes only, and
decodes like any other tensor of its scheme. The order of the columns is that of the matrix.

Of an expert that saw fewer rows than it has columns, H is singular; the dampening d makes it invertible. An expert that
saw none, or whose dampened H is still not positive definite, keeps the codes of round-to-nearest.

Source: Frantar et al., GPTQ (arXiv 2210.17323), algorithm 1.
Legend: E experts, O out, I in, R rows of all experts, N rows of one, S stack, G groups, M members of a group.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.numerics import QuantizedTensor, dequantize, quantize
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.reference import decode_scales
from quantaudit.numerics.rounding import encode

LIBRARY = "nvidia-modelopt"
_EXTRA = "modelopt"
_BLOCK = 128  # columns whose errors are moved on together: decides the order of sums, not the algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenInputs:
    """What the experts of a layer were given.

    Attributes:
        hessian_EII: H of every expert, fp32; zeros for an expert without rows.
        rows_E: How many rows each expert saw.
    """

    hessian_EII: Tensor
    rows_E: tuple[int, ...]


class RoundedStack(NamedTuple):
    """A stack with compensated codes.

    Attributes:
        tensor: Codes and scales of all experts.
        num_nearest: Experts that keep the codes of round-to-nearest.
    """

    tensor: QuantizedTensor
    num_nearest: int


def check_library() -> None:
    """Makes sure that the library is there, without importing it.

    Raises:
        InputError: If it is not.
    """
    if find_spec("modelopt") is None:
        raise InputError(
            f"a recipe with [gptq], whose library {LIBRARY} is not installed",
            expected="the library",
            fix=f"pip install 'quantaudit[{_EXTRA}]'",
        )


def library_version() -> str:
    """Returns name and version of the library."""
    return f"{LIBRARY} {metadata.version(LIBRARY)}"


class _Library(NamedTuple):
    """The functions of the library that are called here.

    Attributes:
        update_hessian: (rows, H, number of rows before) -> (H, number of rows), H in place.
        factorize: (H, weight, dampening) -> U, the identity where that does not exist.
        round_columns: (weight, U, columns a block, Q), the weight in place.
    """

    update_hessian: Callable[[Tensor, Tensor, int], tuple[Tensor, int]]
    factorize: Callable[[Tensor, Tensor, float], Tensor]
    round_columns: Callable[[Tensor, Tensor, int, Callable[[Tensor], Tensor]], None]


@cache
def _open_library() -> _Library:
    with _quiet():
        from modelopt.torch.quantization.utils.calib_utils import (
            compute_hessian_inverse,
            gptq_blockwise_update,
            update_hessian,
        )
    return _Library(update_hessian, compute_hessian_inverse, gptq_blockwise_update)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps off the terminal what the library says of GPUs and of other packages while it is imported."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class InputCollector:
    """Adds up the Hessians of the experts of a layer, batch by batch."""

    def __init__(self, num_experts: int, width: int) -> None:
        self._hessian_EII = torch.zeros(num_experts, width, width)
        self._rows_E = [0] * num_experts

    def add(self, x_RI: Tensor, counts_E: list[int]) -> None:
        """Takes in rows sorted by expert, any float dtype.

        Args:
            x_RI: The rows.
            counts_E: Rows of each expert, summing to R.
        """
        update = _open_library().update_hessian
        for expert, x_NI in enumerate(torch.split(x_RI.float(), counts_E)):
            _, self._rows_E[expert] = update(x_NI, self._hessian_EII[expert], self._rows_E[expert])

    def seen(self) -> SeenInputs:
        """Returns what was added up."""
        return SeenInputs(hessian_EII=self._hessian_EII, rows_E=tuple(self._rows_E))


@torch.no_grad()
def round_stack(weight_EOI: Tensor, scheme: Scheme, seen: SeenInputs, *, dampening: float) -> RoundedStack:
    """Returns the stack with codes chosen by GPTQ, expert by expert, under the scales of round-to-nearest.

    Args:
        weight_EOI: The masters, bf16 or fp32.
        scheme: Of the catalogue; double quantization of scales included.
        seen: Inputs of these experts.
        dampening: d above: share of the mean of H's diagonal that is added to it.

    Raises:
        InputError: As `quantize`.
    """
    nearest = quantize(weight_EOI, scheme)
    codes, num_nearest = [], 0
    for expert, weight_OI in enumerate(weight_EOI.float()):
        factor_II = _factor(seen.hessian_EII[expert], weight_OI, dampening) if seen.rows_E[expert] else None
        if factor_II is None:
            num_nearest += 1
            codes.append(nearest.codes[expert])
        else:
            codes.append(_round_matrix(weight_OI, take_expert(nearest, expert), factor_II))
    return RoundedStack(replace(nearest, codes=torch.stack(codes)), num_nearest)


def _factor(hessian_II: Tensor, weight_OI: Tensor, dampening: float) -> Tensor | None:
    """Returns U, or `None` where the dampened Hessian is not positive definite and the library gives up."""
    with redirect_stdout(sys.stderr):  # it prints that it gave up
        factor_II = _open_library().factorize(hessian_II, weight_OI, dampening)
    return None if torch.equal(factor_II, torch.eye(len(factor_II))) else factor_II


def _round_matrix(weight_OI: Tensor, nearest: QuantizedTensor, factor_II: Tensor) -> Tensor:
    """Returns the codes of one matrix, in the dtype and shape of those of round-to-nearest."""
    values_OI = weight_OI.clone()
    _open_library().round_columns(values_OI, factor_II, _BLOCK, lambda x_OI: dequantize(encode_at(x_OI, nearest)))
    rounded = encode_at(values_OI, nearest)
    assert torch.equal(dequantize(rounded), values_OI), "what the library wrote decodes to itself"
    return rounded.codes


def encode_at(x_OI: Tensor, measured: QuantizedTensor) -> QuantizedTensor:
    """Returns the nearest codes of a matrix under scales that are given, by true division in fp32.

    Args:
        x_OI: fp32.
        measured: A matrix of the same shape whose scales are taken. A group whose scale is zero or not finite gets the
            code of zero.
    """
    cut = plan(measured.shape, measured.scheme.granularity)
    scale_SG1 = decode_scales(measured).unsqueeze(-1)
    ratio_SGM = to_groups(x_OI, cut) / scale_SG1
    is_usable_SG1 = scale_SG1.isfinite() & (scale_SG1 != 0)
    codes_SGM = encode(torch.where(is_usable_SG1, ratio_SGM, 0.0), element_rule(measured.scheme))
    return replace(measured, codes=from_groups(codes_SGM, cut, measured.shape), dtype=torch.float32)


def take_expert(stack: QuantizedTensor, expert: int) -> QuantizedTensor:
    """Returns one matrix of a stack, sharing its memory."""
    return replace(
        stack,
        codes=stack.codes[expert],
        scales=stack.scales[expert],
        second_scales=None if stack.second_scales is None else stack.second_scales[expert],
        offset=None if stack.offset is None else stack.offset[expert],
        shape=stack.shape[1:],
    )
