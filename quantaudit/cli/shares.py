"""A share as it is read."""

from __future__ import annotations

_LEAST = 1e-4  # of four digits, below one; a share nearer to none or to all is not rounded to it


def format_percent(fraction: float) -> str:
    """Returns a share as it is read: what is not all is never printed as 100 %, nor what is not nothing as 0 %."""
    if fraction == 1:
        return "all"
    if 0 < fraction < _LEAST:
        return f"less than {100 * _LEAST:g} %"
    if fraction > 1 - _LEAST:
        return f"more than {100 * (1 - _LEAST):g} %"
    return f"{100 * fraction:.4g} %"
