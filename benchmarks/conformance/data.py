"""The weights that every side quantizes: Gaussian, each row with a lognormal scale of its own.

Different row scales put absolute maxima at every place within a binade, which is what scale rules part on. Nothing here
is zero, infinite or NaN: special blocks are the business of certificates, this table is about ordinary weights.

Size and spread are those of the published figures, as far as they tell: of what a single level of E4M3 scales does they
give the share of other codes, 77.9 %, and the relative error, 0.01386, and both depend on size and spread alone. Eight
draws give 78.1 to 80.7 % and 0.0139 to 0.0148 with the numbers here, 75.2 to 78.6 % and 0.0129 to 0.0139 with a spread
of 0.6, and nothing near with a size of 0.05 or 1. So these two figures are no independent check, as the report says.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

# Not a seed whose largest weight rounds to 1.75 * 2^k in bf16, as one in 64 does: 1/448 of that is exact, and FP8 with
# one scale a tensor then shows no difference at all.
SEED = 20_261_130
ROWS, COLUMNS = 1024, 1024
TYPICAL = 0.02  # of a weight
SPREAD = 0.5  # standard deviation of the natural logarithm of a row's scale
POOLED = 8  # draws over which shares are averaged that published figures are held against
# Of the smallest and the largest of n draws it is known, whatever their distribution, that another draw lies between
# them with probability (n - 1) / (n + 1): 99 % here. For what one draw has one of, such as a scale for the tensor.
SINGLE = 199
DTYPES = (torch.float32, torch.bfloat16)


def make_weights(rows: int = ROWS, columns: int = COLUMNS, seed: int = SEED) -> Tensor:
    """Draws the weights, [R, C] fp32; the bf16 ones are these, rounded.

    Args:
        rows: Number of rows, a multiple of 128 so that every scheme applies.
        columns: Number of columns, likewise.
        seed: Of NumPy's PCG64.
    """
    generator = np.random.default_rng(seed)
    scale_R1 = TYPICAL * np.exp(SPREAD * generator.standard_normal((rows, 1)))
    weights_RC = generator.standard_normal((rows, columns)) * scale_R1
    return torch.from_numpy(weights_RC.astype(np.float32))


def digest_weights(weights_RC: Tensor) -> str:
    """Returns the sha256 (hex) of the fp32 bytes, which tells whether two reports saw the same numbers."""
    return hashlib.sha256(weights_RC.numpy().tobytes()).hexdigest()
