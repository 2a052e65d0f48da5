"""Whether a larger value never decodes to a smaller one, under one statistic: the premise of the boundary level.

Shape suffixes: B statistics, M values of a row.
"""

from __future__ import annotations

import torch

from quantaudit.core.certificate import Assumption
from quantaudit.identity.domain import INPUTS, listed_block
from quantaudit.identity.laying import lay_out
from quantaudit.identity.observe import observe
from quantaudit.identity.sides import Side

_NUM_VALUES = 4096
_EXPONENTS = (0, -1, 1, 5, -9, -40, 60, -120, 120)
_SEED = 20260805


def check_monotonic(side: Side, dtype: torch.dtype, out_dtype: torch.dtype) -> Assumption:
    """Runs a side on sorted random values under statistics of several binades."""
    inputs = INPUTS[dtype]
    rng = torch.Generator().manual_seed(_SEED)
    binades_B = torch.tensor(_EXPONENTS) + 127
    ranks_B = (binades_B << inputs.mantissa_bits) + torch.randint(
        0, 1 << inputs.mantissa_bits, (len(_EXPONENTS),), generator=rng
    )
    # Uniform over the twelve binades below the statistic, where codes change.
    below_BM = torch.randint(0, 12 << inputs.mantissa_bits, (len(ranks_B), _NUM_VALUES // 2), generator=rng)
    magnitudes_BM = (ranks_B.unsqueeze(1) - below_BM).clamp(min=0)
    block = listed_block(ranks_B, torch.cat([magnitudes_BM, -1 - magnitudes_BM], dim=1), inputs)
    found = observe(side, block, lay_out(block, side.scheme, is_statistic_first=True), out_dtype).values_BM.float()
    falls_BM = found[:, 1:] < found[:, :-1]
    return Assumption(
        side=side.name,
        name="monotonic",
        statement="A larger value never decodes to a smaller one, under one statistic.",
        holds=not bool(falls_BM.any()),
        num_checked=found.numel(),
        found=f"{int(falls_BM.sum())} values" if falls_BM.any() else None,
    )
