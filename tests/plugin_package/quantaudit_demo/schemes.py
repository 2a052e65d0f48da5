"""A scheme is data: what is bundled, with one field changed, is another scheme."""

from __future__ import annotations

from quantaudit import Scheme, get_scheme
from quantaudit.core.scheme import PerGroup

INT4_G64: Scheme = get_scheme("int4-g32-div7").model_copy(
    update={"name": "int4-g64", "granularity": PerGroup(size=64), "source": "an example: int4-g32-div7 in groups of 64"}
)
