"""What is known about a published figure besides whether it is met: which of the two is right, and why it varies.

Ranges over eight draws: seeds 1 to 6, 20260 and 20261130, with a spread of the row scales of 0.3, 0.5 and 1.0 and a
typical weight of 0.02, 0.05 and 1. Ranges over seven: seeds 1 to 5, 20260 and 20261130 with the weights as committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.conformance.figures import BF16, FP32
from benchmarks.conformance.table import Part

_CT, _AO, _SINGLE = "compressed-tensors:nvfp4", "torchao:nvfp4", "torchao:nvfp4-single-level"
_TENSOR = ("torchao:fp8-tensor", "compressed-tensors:fp8-tensor")
_CLIPPING = ("torchao:int4-g32", "torchao:int4-g32-no-clipping")
_CLIPPING_128 = ("torchao:int4-g128", "torchao:int4-g128-no-clipping")
_CHANCE = (
    "chance, both are right: {} % over seven draws, from whose mean the published figure is two standard errors away"
)
_EXACT_TIE = "one fp32 weight in this draw is an exact tie, -1.25 scales: both are right"
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
    (*_CLIPPING, FP32, Part.CODES): _CHANCE.format("14.8 to 14.9"),
    (*_CLIPPING_128, FP32, Part.VALUES): _CHANCE.format("85.3 to 85.4"),
    ("conventions:triton-old-mxfp4-up", "torchao:mxfp4-rceil", FP32, Part.VALUES): _EXACT_TIE,
    ("conventions:quark-mxfp4-even", "torchao:mxfp4-even", FP32, Part.VALUES): _EXACT_TIE,
    ("conventions:microxcaling-mxfp4-nearest", "torchao:mxfp4-floor", FP32, Part.VALUES): _EXACT_TIE,
    (*_G128, BF16, Part.VALUES): (
        "0.351 to 0.366 % over eight draws, all above what is published: take the share found here"
    ),
}
