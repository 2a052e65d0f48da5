"""What is known about a published figure besides whether it is met: which of the two is right, and why it varies.

Ranges are over eight other draws of the weights: seeds 1 to 6, 20260 and 20261130, with a spread of the row scales of
0.3, 0.5 and 1.0 and a typical weight of 0.02, 0.05 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.conformance.figures import BF16, FP32
from benchmarks.conformance.table import Part

UNSETTLED = "not settled which is right"

_CT, _AO, _SINGLE = "compressed-tensors:nvfp4", "torchao:nvfp4", "torchao:nvfp4-single-level"
_TENSOR = ("torchao:fp8-tensor", "compressed-tensors:fp8-tensor")
_G128 = ("torchao:int4-g128", "compressed-tensors:int4-g128")

REMARKS: Mapping[tuple[str, str, str, Part], str] = {
    (_CT, _AO, BF16, Part.SCALES): "one draw of the tensor's scale: 0.6 to 6.4 % over eight draws; both are right",
    (_CT, _AO, BF16, Part.CODES): "one draw of the tensor's scale: 0.09 to 1.8 % over eight draws; both are right",
    (_CT, _AO, BF16, Part.VALUES): "one draw of the tensor's scale: 0.6 to 83 % over eight draws; both are right",
    (_CT, _AO, FP32, Part.CODES): "rare: one code in eight draws of a million; a sample without one proves nothing",
    (_SINGLE, _AO, FP32, Part.CODES): (
        "7 to 84 % over eight draws: a single-level scale is clamped at 2^-6, so it depends on the size of the weights"
    ),
    (*_TENSOR, BF16, Part.CODES): "one draw of the tensor's scale: 0 to 3.5 % over eight draws; both are right",
    (*_G128, BF16, Part.VALUES): (
        "0.351 to 0.366 % over eight draws, all above what is published: take the share found here"
    ),
}
