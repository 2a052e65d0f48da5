"""A registry finds built-ins and plug-ins by name, and imports a plug-in only when it is asked for.

Built-ins have bare names. Plug-ins come from entry points and are called `package/name`, so no plug-in can take a
built-in's place. A plug-in that cannot be loaded is listed with its error and stops nobody who does not ask for it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from quantaudit import __version__
from quantaudit.core.errors import InputError

T = TypeVar("T")
_OWN_PACKAGE = "quantaudit"
_FEW = 8  # names that a message can list


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One registered name.

    Attributes:
        name: Bare for built-ins, `package/name` for plug-ins.
        package: Distribution that brings it.
        version: Version of that distribution.
        target: "module:attribute" of a plug-in; empty for built-ins.
        error: Why the plug-in could not be loaded; `None` where it could, or was not tried.
    """

    name: str
    package: str
    version: str
    target: str = ""
    error: str | None = None


class Loaded(NamedTuple, Generic[T]):
    """An entry and its object; `None` where it cannot be loaded."""

    entry: Entry
    value: T | None


class Registry(Generic[T]):
    """The objects of one kind, by name.

    Args:
        kind: What one is called in messages, such as "observer".
        group: Entry-point group of the plug-ins, such as "quantaudit.observers"; its last word is what
            `quantaudit list` calls them.
        builtins: Returns the built-ins by bare name.
        adopt: Turns what the entry point of a plug-in named into the object of that registered name; raises `TypeError`
            or `ValueError` with the reason where it cannot.
    """

    def __init__(
        self, *, kind: str, group: str, builtins: Callable[[], Mapping[str, T]], adopt: Callable[[str, object], T]
    ) -> None:
        self.kind = kind
        self.group = group
        self._builtins = builtins
        self._adopt = adopt
        self._adopted: dict[str, T] = {}

    def entries(self) -> tuple[Entry, ...]:
        """Lists built-ins, then plug-ins by name, without importing any plug-in.

        Raises:
            InputError: If a name is claimed twice.
        """
        own = [Entry(name=name, package=_OWN_PACKAGE, version=__version__) for name in self._builtins()]
        found = {entry.name: entry for entry in own}
        for entry in _plug_ins(self.group):
            if entry.name in found:
                raise self._claimed_twice(entry, found[entry.name])
            found[entry.name] = entry
        return (*own, *(found[name] for name in sorted(found.keys() - self._builtins().keys())))

    def names(self) -> tuple[str, ...]:
        """Lists the registered names, built-ins first."""
        return tuple(entry.name for entry in self.entries())

    def load_all(self) -> tuple[Loaded[T], ...]:
        """Loads everything, for listing: entries that fail carry their error.

        Raises:
            InputError: If a name is claimed twice.
        """
        builtins = self._builtins()
        return tuple(
            Loaded(entry, builtins[entry.name]) if entry.name in builtins else self._attempt(entry)
            for entry in self.entries()
        )

    def load(self, name: str) -> T:
        """Returns the object of that name.

        Raises:
            InputError: If the name is not registered or claimed twice, or its plug-in cannot be loaded.
        """
        builtins = self._builtins()
        if name in builtins:
            return builtins[name]
        if name not in self._adopted:
            entry, value = self._attempt(self._find(name))
            if value is None:
                raise InputError(
                    f"the {self.kind} {name!r} of {entry.package} {entry.version}, which fails to load ({entry.error})",
                    expected=f"{entry.target} to be importable, and a {self.kind}",
                    fix=f"repair or uninstall {entry.package}, or choose another {self.kind}",
                )
            self._adopted[name] = value
        return self._adopted[name]

    def _find(self, name: str) -> Entry:
        found = {entry.name: entry for entry in self.entries()}
        if name in found:
            return found[name]
        near = difflib.get_close_matches(name, found, n=3, cutoff=0.5)
        command = f"`quantaudit list {self.group.rpartition('.')[2]}`"
        raise InputError(
            f"the {self.kind} {name!r}",
            expected=f"one of {', '.join(found) if len(found) <= _FEW else f'the {len(found)} that {command} shows'}",
            fix=f"did you mean {', '.join(near)}?" if near else f"choose from {command}, or install what has it",
        )

    def _claimed_twice(self, entry: Entry, other: Entry) -> InputError:
        return InputError(
            f"the {self.kind} name {entry.name!r}, claimed by {other.target or other.package} and by {entry.target}",
            expected="one claim to a name",
            fix=f"uninstall one of them, or rename one in {entry.package}",
        )

    def _attempt(self, entry: Entry) -> Loaded[T]:
        """Imports a plug-in; whatever it raises becomes the entry's error."""
        try:
            return Loaded(entry, self._adopt(entry.name, _import(entry.target)))
        except (Exception, SystemExit) as error:  # a stranger's module may do anything while it is imported
            said = " ".join(str(error).split())
            return Loaded(replace(entry, error=f"{type(error).__name__}: {said}"), None)


def _plug_ins(group: str) -> list[Entry]:
    found = []
    for point in metadata.entry_points(group=group):
        package = _normalize(point.dist.name) if point.dist else "unknown"
        version = point.dist.version if point.dist else ""
        target = point.value.partition("[")[0].strip()  # without the extras that the syntax allows
        found.append(Entry(name=f"{package}/{point.name}", package=package, version=version, target=target))
    return found


def _normalize(distribution: str) -> str:
    """Returns the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _import(target: str) -> object:
    module, separator, attribute = target.partition(":")
    if not (module and separator and attribute):
        raise ValueError(f"the target {target!r} is not of the form module:attribute")
    value: object = attrgetter(attribute)(import_module(module))
    return value
