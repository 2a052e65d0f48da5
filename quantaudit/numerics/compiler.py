"""Whether there is a compiler for the twins, and the options that keep the bits of eager code in compiled code.

Without these options a compiler may keep bf16 intermediates in fp32, approximate divisions (CUDA), flush subnormals, or
contract a multiply and an add. They apply to our compilations only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

EXACT_OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.enable_unsafe_math_opt_flag": False,
}

_WORDS_OF_AN_ERROR = 16
_failures: dict[str, str] = {}  # device type -> what the compiler said, in this process


def why_eager(device_type: str) -> str | None:
    """Returns why compiled twins cannot be used on a kind of device, or None; nothing is compiled to find out.

    A compiler that is found but fails counts as missing from then on.
    """
    if device_type in _failures:
        return f"compiling failed ({_failures[device_type]})"
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device_type == "cpu" and shutil.which(wanted) is None:
        return f"no C++ compiler ({wanted}) was found"
    return None


def record_failure(device_type: str, error: Exception) -> None:
    """Notes that compiling failed, so that it is not tried again in this process."""
    said = " ".join(str(error).split()[:_WORDS_OF_AN_ERROR])
    _failures[device_type] = f"{type(error).__name__}: {said}"


def compile_exactly(function: Callable[_Args, _Result], name: str) -> Callable[_Args, _Result]:
    """Returns the function compiled on its first call, with bits equal to eager execution.

    It gets a code object of its own: compiled variants are counted by code object, and closures over different schemes
    would share one.
    """
    function.__code__ = function.__code__.replace(co_name=name)
    return torch.compile(function, fullgraph=True, options=EXACT_OPTIONS)
