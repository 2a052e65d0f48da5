"""The tap: a function given every observable value, whose return value the forward pass goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from quantaudit.core.site import Site

Tap: TypeAlias = Callable[[Site, Tensor], Tensor]


def untapped(site: Site, value: Tensor) -> Tensor:
    """Returns the value as it is."""
    return value
