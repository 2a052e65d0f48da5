"""Families: quantizers to one element format over the same groups of values, which can be held against each other."""

from __future__ import annotations

from quantaudit.core.format import E2M1
from quantaudit.core.scheme import FlatBlocks, Granularity, PerBlock, PerChannel, PerGroup, PerTensor, Scheme
from quantaudit.numerics import get_scheme, scheme_names

MXFP4, NVFP4 = "MXFP4", "NVFP4"
_MX_GROUP = 32
_YARDSTICKS = {MXFP4: "mxfp4-even"}


def family_of(scheme: Scheme) -> str:
    """Returns the name of the family of a scheme: its element format and its groups."""
    grain = scheme.granularity
    if scheme.element == E2M1 and isinstance(grain, PerGroup):
        return MXFP4 if grain.size == _MX_GROUP else NVFP4
    return f"{scheme.element.name.upper()} {_words(grain)}"


def family_schemes(family: str) -> tuple[str, ...]:
    """Lists the schemes of the catalogue that belong to a family."""
    return tuple(name for name in scheme_names() if family_of(get_scheme(name)) == family)


def yardstick(family: str) -> str:
    """Returns the scheme that a family is measured against: the first of the catalogue unless one is usual."""
    return _YARDSTICKS.get(family) or family_schemes(family)[0]


def _words(grain: Granularity) -> str:
    match grain:
        case PerTensor():
            return "tensor"
        case PerGroup(size=size):
            return f"g{size}"
        case FlatBlocks(size=size):
            return f"b{size}"
        case PerBlock(rows=rows):
            return f"block{rows}"
    assert isinstance(grain, PerChannel)
    return "channel"
