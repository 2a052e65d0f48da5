"""Where numbers lie on an axis, and which of them are written beside it.

An axis is linear, or where the numbers span more than a factor of 100, `asinh(v / c)` with the smallest of them as `c`:
linear around zero, logarithmic beyond, and at home with both signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

_WIDE = 100.0
_STEPS = (1.0, 2.0, 5.0, 10.0)


class Axis(NamedTuple):
    """A range with the numbers written beside it.

    Attributes:
        softness: `c` of the formula above; 0 for a linear axis.
        decimals: Digits after the point of its numbers, `None` where each is written by itself.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    softness: float = 0.0
    decimals: int | None = None

    def place(self, value: float) -> float:
        """Returns where a number lies: 0 at the low end, 1 at the high one; what lies beyond is moved there."""
        low, high = self._bend(self.low), self._bend(self.high)
        return min(max((self._bend(value) - low) / (high - low), 0.0), 1.0)

    def holds(self, value: float) -> bool:
        """Tells whether the number lies on the axis."""
        return self.low <= value <= self.high

    def write(self, tick: float) -> str:
        """Writes one of its numbers."""
        return f"{tick:.3g}" if self.decimals is None else f"{tick:z.{self.decimals}f}"

    def _bend(self, value: float) -> float:
        return math.asinh(value / self.softness) if self.softness else value


def linear_axis(values: Iterable[float], *, has_zero: bool, most_ticks: int = 5) -> Axis:
    """Returns an axis with round ends that holds all finite values.

    Args:
        values: What must lie on it.
        has_zero: Whether zero must too.
        most_ticks: Steps it is cut into, at most.
    """
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    if has_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        low, high = (low, low + 1.0) if has_zero and low == 0 else (low - abs(low) / 2 - 1e-9, high + abs(high) / 2)
    step = _step((high - low) / most_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(k * step for k in range(first, last + 1))
    # A tick is a product that may be rounded past the value it stands for.
    return Axis(min(ticks[0], low), max(ticks[-1], high), ticks, decimals=_decimals(step))


def damage_axis(values: Iterable[float]) -> Axis:
    """Returns an axis that holds zero and all finite values, bent where they span too much for a linear one."""
    finite = [v for v in values if math.isfinite(v)]
    sizes = sorted(abs(v) for v in finite if v)
    if not sizes or sizes[-1] / sizes[0] <= _WIDE:
        return linear_axis(finite, has_zero=True)
    softness = 10.0 ** math.floor(math.log10(max(sizes[len(sizes) // 4], sizes[-1] / 1e5)))
    powers = [softness * 10.0**k for k in range(8) if softness * 10.0 ** (k - 1) < sizes[-1]]
    high = next(p for p in powers if p >= max(finite)) if max(finite) > 0 else 0.0
    low = -next(p for p in powers if p >= -min(finite)) if min(finite) < 0 else 0.0
    ticks = [*(-p for p in reversed(powers)), 0.0, *powers]
    return Axis(low, high, tuple(t for t in ticks if low <= t <= high), softness)


def _step(rough: float) -> float:
    """Returns the smallest of 1, 2, 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(s * power for s in _STEPS if s * power >= rough * (1 - 1e-9))


def _decimals(step: float) -> int | None:
    places = -math.floor(math.log10(step) + 1e-9)
    return max(places, 0) if places <= 5 and step < 1e5 else None
