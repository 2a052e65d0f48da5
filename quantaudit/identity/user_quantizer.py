"""A user's quantizer, `module:callable`: imported, called, and held to what it must return.

It gets a matrix and returns the fake-quantized matrix of the same shape, or a `QuantizedTensor`. What it does wrong is
said in its name: an exception, another shape or dtype, a changed input, or two results for one input.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.numerics.reference import INPUT_DTYPES, QuantizedTensor

UserFunction: TypeAlias = Callable[[Tensor], Tensor | QuantizedTensor]

# What a stranger's code may raise when it is wrong; an interrupt or a full memory is not its fault.
_FAULTS = (Exception, SystemExit)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuantizer:
    """A callable with the name it was asked for by."""

    target: str
    function: UserFunction

    def __call__(self, weight: Tensor) -> Tensor | QuantizedTensor:
        """Returns what the callable makes of a matrix it may do with as it likes.

        Args:
            weight: `[R, C]` fp32 or bf16.

        Raises:
            InputError: If it raises, returns something else than it must, or changes its input.
        """
        given = weight.clone()
        try:
            with redirect_stdout(sys.stderr):  # what is printed there is no part of the answer
                result = self.function(given)
        except MemoryError:
            raise
        except _FAULTS as error:
            said = " ".join(str(error).split())
            raise InputError(
                f"{self.target} raised {type(error).__name__}{f': {said}' if said else ''}",
                expected=f"it to quantize a matrix of shape {list(weight.shape)} and {weight.dtype}",
                fix="correct it, or wrap it in a function that lays the matrix out as it needs",
            ) from error
        self._check(result, weight)
        if not torch.equal(_bits(given), _bits(weight)):
            raise InputError(
                f"{self.target} changes its input", expected="a new tensor", fix="quantize a copy: x = x.clone()"
            )
        return result.detach() if isinstance(result, Tensor) else result

    def check_repeats(self, weight: Tensor) -> None:
        """Calls it twice on one matrix.

        Raises:
            InputError: If the results differ; the first place is named.
        """
        first, second = _values(self(weight)), _values(self(weight))
        differs = (_bits(first) != _bits(second)).flatten().nonzero()
        if len(differs) == 0:
            return
        at = int(differs[0])
        once, again = float(first.flatten()[at]), float(second.flatten()[at])
        raise InputError(
            f"{self.target} is not deterministic: {len(differs)} of {first.numel()} values differ between two calls on"
            f" one matrix, {weight.flatten()[at].item()!r} becoming {once!r} and then {again!r}",
            expected="the same bits for the same input",
            fix="turn stochastic rounding off, or seed it inside the callable",
        )

    def _check(self, result: object, weight: Tensor) -> None:
        if isinstance(result, QuantizedTensor):
            result = result.codes
        elif isinstance(result, Tensor) and result.dtype not in INPUT_DTYPES:
            raise InputError(
                f"{self.target} returned {result.dtype}",
                expected="the decoded values, float32 or bfloat16",
                fix="return dequantized values, not codes",
            )
        if not isinstance(result, Tensor):
            raise InputError(
                f"{self.target} returned a {type(result).__name__}",
                expected="a tensor of decoded values, or a quantaudit.numerics.QuantizedTensor",
                fix="return the fake-quantized matrix",
            )
        if result.layout is not torch.strided or result.device != weight.device:
            where = f"on {result.device}" if result.layout is torch.strided else f"of the layout {result.layout}"
            raise InputError(
                f"{self.target} returned a tensor {where}",
                expected=f"a strided one on {weight.device}, as its input is",
                fix="return dense values on the device of the input",
            )
        if result.shape != weight.shape:
            raise InputError(
                f"{self.target} returned the shape {list(result.shape)}",
                expected=f"that of its input, {list(weight.shape)}",
                fix="return one value for every value of the matrix",
            )


def load_user_quantizer(target: str) -> UserQuantizer:
    """Imports `module:callable`.

    Raises:
        InputError: If it cannot be imported, or cannot be called.
    """
    try:
        with redirect_stdout(sys.stderr):
            function = pkgutil.resolve_name(target)
    except MemoryError:
        raise
    except _FAULTS as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"{target!r}, which cannot be imported ({type(error).__name__}: {said})",
            expected="a scheme, backend:scheme or module:callable",
            fix="see `quantaudit list schemes` and `quantaudit list backends`, or run where the module can be imported",
        ) from error
    if not callable(function):
        raise InputError(
            f"{target!r}, which is a {type(function).__name__}", expected="a callable", fix="name a function"
        )
    return UserQuantizer(target=target, function=function)


def _values(result: Tensor | QuantizedTensor) -> Tensor:
    return result if isinstance(result, Tensor) else result.codes


def _bits(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return x
    return x.contiguous().view(torch.int16 if x.itemsize == 2 else torch.int32)
