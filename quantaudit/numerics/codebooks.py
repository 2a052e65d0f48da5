"""The codebooks of bitsandbytes: NF4, its FP4, and the dynamic 8-bit map that holds double-quantized scales."""

from __future__ import annotations

import struct

from quantaudit.core.format import CodebookFormat, Midpoints

_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_FP4_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
_DYNAMIC_DECADES = 7


def _fp32(value: float) -> float:
    """Returns a float64 rounded to fp32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _bnb_fp4() -> tuple[float, ...]:
    """Returns the 16 values by code; code 8 is a second +0, not -0."""
    positive = tuple(_fp32(v / 12.0) for v in _FP4_TWELFTHS)
    return positive + tuple(0.0 if v == 0 else -v for v in positive)


def _dynamic_8bit() -> tuple[float, ...]:
    """Returns the 256 ascending values of the dynamic map.

    Decade i of 7 is cut into 2^i equal parts between .1 and 1, whose centres are the values; 0 and 1 are added. The
    cuts are start + k * step up to the middle and end - k * step beyond it, each rounded once (fused multiply-add).
    """
    start = _fp32(0.1)
    values = [0.0, 1.0]
    for decade in range(_DYNAMIC_DECADES):
        parts = 1 << decade
        step = _fp32(_fp32(1.0 - start) / parts)
        cuts = [
            _fp32(start + step * k) if k < (parts + 1) // 2 else _fp32(1.0 - step * (parts - k))
            for k in range(parts + 1)
        ]
        centres = [_fp32(a + b) / 2 for a, b in zip(cuts, cuts[1:], strict=False)]
        power = _fp32(10.0 ** (decade + 1 - _DYNAMIC_DECADES))
        values += [sign * _fp32(power * centre) for centre in centres for sign in (1.0, -1.0)]
    return tuple(sorted(values))


NF4 = CodebookFormat(name="nf4", bits=4, table=_NF4, midpoints=Midpoints.FLOAT32)
BNB_FP4 = CodebookFormat(name="bnb-fp4", bits=4, table=_bnb_fp4(), midpoints=Midpoints.FLOAT32)
DYNAMIC8 = CodebookFormat(name="bnb-dynamic8", bits=8, table=_dynamic_8bit(), midpoints=Midpoints.FLOAT32)
