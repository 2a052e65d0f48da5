"""What is known about a published figure besides whether it is met: which of the two is right, and why it varies."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.conformance.figures import BF16, FP32
from benchmarks.conformance.table import Part

_SINGLE, _NVFP4 = "torchao:nvfp4-single-level", "torchao:nvfp4"
_G128 = ("torchao:int4-g128", "compressed-tensors:int4-g128")
_BORDERS = (
    "not one function, though equal in one published draw: 0 to 0.62 % in eight draws, as one divides by the product "
    "of both scales where the other multiplies by reciprocals, and block scales are divided in another order"
)

REMARKS: Mapping[tuple[str, str, str, Part], str] = {
    (_SINGLE, _NVFP4, FP32, Part.CODES): (
        "no independent check: size and spread of the weights were fitted to this share and to the published relative "
        "error; it depends on them, from 7 % where no scale meets the floor of 2^-6"
    ),
    ("modelopt:nvfp4", _NVFP4, BF16, Part.VALUES): _BORDERS,
    ("compressed-tensors:nvfp4", _NVFP4, FP32, Part.CODES): "rare: a sample without one proves nothing",
    (*_G128, BF16, Part.VALUES): (
        "take the share found here: 0.348 to 0.360 % in eight draws, by the libraries and by the schemes of the "
        "catalogue alike"
    ),
}
