"""Where torchao's quantizers depart from the catalogue, one sentence a kind of group or value.

Every sentence is a test in tests/backends: that the quantizer departs there, and that it does so nowhere else.
"""

from __future__ import annotations

# Power-of-two scales.
HALVED = "A group whose scale would be 2^-127 is divided by 2^-126 and decoded with 2^-127: half of what it was."
UNSCALED = "A group whose scale would be 2^-127 is not scaled at all: every code is a zero."
LOGARITHM = (
    "fp32: the exponent is a float32 log2, so a group maximum some ulps above the largest element times 2^k gets k "
    "where the catalogue takes k + 1, and saturates."
)
MX_INFINITY = (
    "A group with an infinity is not NaN: the infinity decodes to an infinity, finite numbers to what the scale of the "
    "largest numbers leaves of them."
)
NAN_CODES = "The codes of what has a NaN scale are not all zero; its values are NaN as in the catalogue."

# Integers.
RECIPROCAL = (
    "Values are multiplied by the rounded reciprocal of the scale, not divided by it: one that lies on a rounding "
    "boundary may get the neighbouring code."
)
INPUT_DTYPE = "bf16: the scale, its reciprocal and the product are rounded to bf16."
SMALLEST_NORMAL = "A scale is at least 2^-126, that of a zero group too."
INFINITE_SCALE = "A group with an infinity has an infinite scale, not NaN; its values are NaN as in the catalogue."
TWO_SIDED = (
    "The scale is the larger of max / 7 and min / -8, not absmax / 7: another one wherever the largest magnitude is "
    "that of a negative number."
)

# FP8.
DIVIDES_BY_ZERO = "A scale of zero is divided by: zeros become NaN, other values get the largest code and decode to 0."
FP8_INFINITY = (
    "A group with an infinity has an infinite scale, not NaN, and codes that are not all zero; its values are NaN as "
    "in the catalogue."
)
SHARED_BY_EXPERTS = "All matrices of a stack share one scale."
WHOLE_BLOCKS = "A matrix that the blocks do not divide is refused."

# NVFP4.
ZERO_MATRIX = "A zero matrix has NaN scales and decodes to NaN."
OVERFLOWING_RECIPROCAL = (
    "Where 1 / (upper scale) / (block scale) overflows, the one or both at most 2^-128, values saturate and zeros "
    "become another number; the catalogue has codes of zero."
)
NVFP4_INFINITY = (
    "A matrix with an infinity has block scales that are not all NaN, and codes that are not all zero; its values are "
    "NaN as in the catalogue."
)
SINGLE_INFINITY = "An infinity decodes to 2688, the largest number there is without a second level."
