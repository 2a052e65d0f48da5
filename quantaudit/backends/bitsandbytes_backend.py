"""bitsandbytes: NF4 and FP4, plain and with nested statistics, and its two 8-bit quantizers.

`int8` is that of LLM.int8(), rows of integers; `int8-blockwise` maps blocks to 256 unevenly spaced values, as its
8-bit optimizers store their state and its nested statistics their scales.
"""

from __future__ import annotations

import torch

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.protocol import Offer

_BOTH = (torch.float32, torch.bfloat16)
_FOUR_BIT = "bitsandbytes.functional.quantize_4bit, blocksize=64"


PARTIAL_BLOCK = (
    "A last block of fewer than 64 values is divided by its absmax, not multiplied by the reciprocal, and its absmax "
    "is stored as at least 1e-38."
)
FLUSHED = "bf16: a value below 2^-126 may decode to zero, as the conversion of the CPU does it."
INFINITY_POSITIVE = (
    "A block with an infinity of either sign has an infinite scale, not NaN: infinities become +inf, the rest NaN."
)
NAN_CODES = "The codes of a block with a NaN are not all zero; its values are NaN as in the catalogue."
LIBRARY_MEAN = "The mean of the scales is torch's: its bits depend on the number of threads."
NEAR_SEARCH = (
    "Codes of scales are searched for approximately on a CPU: near the mean they may be four off, elsewhere one near a "
    "border."
)
NESTED_SPECIAL = (
    "A matrix with an infinity or a NaN has codes of scales and of values that are not all zero; its values are NaN as "
    "in the catalogue."
)
MULTIPLIED = (
    "Values are multiplied by the rounded 127 / absmax, not divided by absmax / 127: on a border the other code."
)
TWICE_ROUNDED = (
    "Values decode to fp32 as code * absmax * (1 / 127), rounded twice: an ulp off in places, and infinite where the "
    "first product is."
)
SMALL_ROWS = "A row whose 127 / absmax is infinite, of an absmax below 127 / 2^128, gets codes of zero."
INFINITE_SCALE = "A row with an infinity has an infinite scale, not NaN; its values are NaN as in the catalogue."
NEAR_VALUES = (
    "On a CPU the search for the nearest value is approximate: near zero a code may be four off, elsewhere one where a "
    "value is close to a border, so a zero becomes 2.1e-5 times the absmax of its block."
)
INFINITE_BLOCK = (
    "A block with an infinity is not NaN: its scale is infinite, infinities of either sign become -inf, the rest +inf."
)
NAN_LOWEST = "A NaN is not counted in absmax and gets the lowest code, -0.993 times absmax; its block is not NaN."
NO_RECIPROCAL = (
    "In a block whose 1 / absmax is infinite, of an absmax up to 2^-128, positive numbers become absmax, the others "
    "-0.993 times that; the catalogue has zeros."
)

_FOUR_BIT_DEPARTS = (PARTIAL_BLOCK, FLUSHED, INFINITY_POSITIVE, NAN_CODES)
_NESTED_DEPARTS = (LIBRARY_MEAN, NEAR_SEARCH, PARTIAL_BLOCK, FLUSHED, NESTED_SPECIAL)


def _offer(name: str, catalogue: str, source: str, *departs: str) -> Offer:
    return Offer(name=name, catalogue=catalogue, dtypes=_BOTH, departs=departs, source=source)


OFFERS = {
    offer.name: offer
    for offer in (
        _offer("nf4", "nf4-b64", _FOUR_BIT, *_FOUR_BIT_DEPARTS),
        _offer("fp4", "fp4-b64", _FOUR_BIT, *_FOUR_BIT_DEPARTS),
        _offer("nf4-double", "nf4-b64-double", f"{_FOUR_BIT}, compress_statistics=True", *_NESTED_DEPARTS),
        _offer("fp4-double", "fp4-b64-double", f"{_FOUR_BIT}, compress_statistics=True", *_NESTED_DEPARTS),
        _offer(
            "int8",
            "int8-channel",
            "bitsandbytes.functional.int8_vectorwise_quant",
            *(MULTIPLIED, TWICE_ROUNDED, SMALL_ROWS, INFINITE_SCALE),
        ),
        _offer(
            "int8-blockwise",
            "dynamic8-b4096",
            "bitsandbytes.functional.quantize_blockwise, blocksize=4096",
            *(NEAR_VALUES, INFINITE_BLOCK, NAN_LOWEST, NO_RECIPROCAL),
        ),
    )
}


def _open() -> Code:
    from quantaudit.backends.bitsandbytes_library import CODE

    return CODE


BACKEND = LibraryBackend(
    name="bitsandbytes",
    distribution="bitsandbytes",
    tested="0.50.",
    offers=OFFERS,
    open_code=_open,
)
