"""Taps for tests: one that records, one that replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from quantaudit.core.site import Site


class Recorder(dict[Site, Tensor]):
    """A tap that keeps the last value of every site and changes none."""

    def __call__(self, site: Site, value: Tensor) -> Tensor:
        """Keeps the value and returns it as it is."""
        self[site] = value
        return value


class Replacer:
    """A tap that passes chosen sites through a function, and records what went on."""

    def __init__(self, changes: Mapping[Site, Callable[[Tensor], Tensor]]) -> None:
        self.changes = changes
        self.seen = Recorder()

    def __call__(self, site: Site, value: Tensor) -> Tensor:
        """Returns the replaced value of a chosen site, any other as it is."""
        change = self.changes.get(site)
        return self.seen(site, value if change is None else change(value))
