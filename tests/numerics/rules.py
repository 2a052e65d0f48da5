"""Every way in which the catalogue, or a library's scheme, turns a ratio into a code."""

from __future__ import annotations

from quantaudit.core.format import E2M1, E2M3, E3M2, E4M3, E5M2, INT2, INT3, INT4, INT8
from quantaudit.core.scheme import CodeRange, Overflow, Tie
from quantaudit.numerics.codebooks import BNB_FP4, DYNAMIC8, NF4
from quantaudit.numerics.ladder import ElementRule

_RANGES = [(INT8, -128, 127), (INT8, -127, 127), (INT4, -8, 7), (INT4, -7, 7), (INT3, -3, 3), (INT2, -1, 1)]

FLOAT_RULES = [
    ElementRule(element, tie, overflow=overflow)
    for element in (E2M1, E2M3, E3M2, E4M3, E5M2)
    for tie in Tie
    if tie is not Tie.BIASED_UP
    for overflow in (list(Overflow) if element.nan_code is not None else [Overflow.SATURATE])
]
INTEGER_RULES = [
    ElementRule(element, tie, CodeRange(low=low, high=high)) for element, low, high in _RANGES for tie in Tie
]
CODEBOOK_RULES = [ElementRule(element, tie) for element in (NF4, BNB_FP4, DYNAMIC8) for tie in (Tie.LOWER, Tie.UP)]
ALL_RULES = FLOAT_RULES + INTEGER_RULES + CODEBOOK_RULES


def rule_id(rule: ElementRule) -> str:
    """Names a rule in test output."""
    span = "" if rule.code_range is None else f"[{rule.code_range.low},{rule.code_range.high}]"
    return f"{rule.element.name}{span}-{rule.tie}-{rule.overflow}"
