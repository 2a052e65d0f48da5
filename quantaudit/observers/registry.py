"""Observers by name: one number per probe each, built-in or from a plug-in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quantaudit.core.registry import Registry
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.paired import Observer


def get_observer(name: str) -> Observer:
    """Returns an observer by name: a built-in one, or that of a plug-in, `package/name`.

    Raises:
        InputError: If there is none of that name, or its plug-in fails to load.
    """
    return OBSERVERS.load(name)


def observer_names() -> tuple[str, ...]:
    """Lists the names of the built-in observers, then those of plug-ins, which are not imported."""
    return OBSERVERS.names()


def observers_for(names: Iterable[str]) -> tuple[Observer, ...]:
    """Returns what one pass measures: all built-in observers, and each plug-in among the names, once.

    Args:
        names: What the clauses of a contract observe; bare names ask for nothing that is not measured anyway.

    Raises:
        InputError: If a plug-in is not there, or fails to load.
    """
    plugged = dict.fromkeys(name for name in names if "/" in name)
    return (*PROBE_OBSERVERS.values(), *map(get_observer, plugged))


def _adopt(name: str, value: object) -> Observer:
    """Returns a plug-in's observer under its registered name."""
    if not isinstance(value, Observer):
        raise TypeError(f"a {type(value).__name__}, not a quantaudit.observers.paired.Observer")
    return replace(value, name=name)


OBSERVERS: Registry[Observer] = Registry(
    kind="observer", group="quantaudit.observers", builtins=lambda: PROBE_OBSERVERS, adopt=_adopt
)
