"""Weights: how far lo's weights are from hi's, and the first place where they differ. No forward is needed.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from quantaudit.core.report import Discrepancy

SQNR_CAP_DB = 200.0  # shown where the error is exactly zero
_EXPERTS_AT_ONCE = 4


def sqnr_db(hi_EOI: Tensor, lo_EOI: Tensor) -> list[float]:
    """Returns 10 log10(|w|^2 / |w - w'|^2) per expert, dB; larger is better, `SQNR_CAP_DB` where they are equal.

    In float64, a few experts at a time: beside two decoded stacks there is no room for four more of twice the width.
    """
    pairs = zip(hi_EOI.split(_EXPERTS_AT_ONCE), lo_EOI.split(_EXPERTS_AT_ONCE), strict=True)
    return [value for hi, lo in pairs for value in _sqnr_db(hi, lo)]


def _sqnr_db(hi_EOI: Tensor, lo_EOI: Tensor) -> list[float]:
    hi, lo = hi_EOI.double().flatten(1), lo_EOI.double().flatten(1)
    signal, error = hi.square().sum(1), (hi - lo).square().sum(1)
    ratio = torch.where(error > 0, 10 * torch.log10(signal / error), SQNR_CAP_DB)
    return [float(x) for x in ratio.clamp(max=SQNR_CAP_DB)]


def rms_ratio(hi_EOI: Tensor, lo_EOI: Tensor) -> float:
    """Returns the root mean square of lo over that of hi, 1 where both are zero; no permutation changes it."""
    hi, lo = _sum_of_squares(hi_EOI), _sum_of_squares(lo_EOI)
    if hi == 0.0:
        return 1.0 if lo == 0.0 else math.inf
    return math.sqrt(lo / hi)


def _sum_of_squares(w_EOI: Tensor) -> float:
    return math.fsum(float(part.double().square().sum()) for part in w_EOI.split(_EXPERTS_AT_ONCE))


def first_discrepancy(name: str, hi: Tensor, lo: Tensor) -> Discrepancy | None:
    """Returns the first coordinate at which two weights differ in value, with fp32 bit patterns."""
    hi, lo = hi.float().cpu(), lo.float().cpu()
    differs = (hi != lo) & ~(hi.isnan() & lo.isnan())
    if not bool(differs.any()):
        return None
    flat = int(differs.flatten().to(torch.uint8).argmax())
    coordinate = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), hi.shape))
    a, b = float(hi.flatten()[flat]), float(lo.flatten()[flat])
    return Discrepancy(tensor=name, coordinate=coordinate, hi_value=a, lo_value=b, hi_bits=_bits(a), lo_bits=_bits(b))


def _bits(value: float) -> str:
    return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"
