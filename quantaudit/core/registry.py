"""A registry finds built-ins and plug-ins by name and imports them only when they are asked for.

Built-ins have bare names and a "module:attribute" target. Plug-ins come from entry points and are called
`package/name`, so no plug-in can take a built-in's place. A plug-in that cannot be loaded is listed with its error and
stops nobody who does not ask for it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from operator import attrgetter
from typing import Generic, TypeVar, cast

from quantaudit.core.errors import InputError

T = TypeVar("T")
_OWN_PACKAGE = "quantaudit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One registered name.

    Attributes:
        name: Bare for built-ins, `package/name` for plug-ins.
        target: "module:attribute".
        package: Distribution that brings it.
        version: Version of that distribution; empty for built-ins.
        error: Why the plug-in could not be loaded; `None` where it could, or was not tried.
    """

    name: str
    target: str
    package: str
    version: str = ""
    error: str | None = None


class Registry(Generic[T]):
    """The objects of one kind, by name.

    Args:
        kind: What they are called in messages, such as "observer".
        group: Entry-point group of the plug-ins, such as "quantaudit.observers".
        builtins: Bare name to "module:attribute".
    """

    def __init__(self, *, kind: str, group: str, builtins: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._builtins = dict(builtins)

    def entries(self) -> tuple[Entry, ...]:
        """Lists built-ins, then plug-ins by name, without importing any of them.

        Raises:
            InputError: If two packages, or one package twice, claim a name.
        """
        own = [Entry(name=n, target=t, package=_OWN_PACKAGE) for n, t in self._builtins.items()]
        return (*own, *_plug_ins(self.kind, self.group))

    def names(self) -> tuple[str, ...]:
        """Lists the registered names, built-ins first."""
        return tuple(entry.name for entry in self.entries())

    def check(self) -> tuple[Entry, ...]:
        """Lists all entries after importing the plug-ins: those that fail carry their error."""
        return tuple(entry if entry.name in self._builtins else _attempt(entry)[0] for entry in self.entries())

    def load(self, name: str) -> T:
        """Imports and returns the object of that name.

        Raises:
            InputError: If the name is not registered, or its plug-in cannot be loaded.
        """
        entry = self._find(name)
        if name in self._builtins:
            return cast(T, _import(entry.target))
        entry, value = _attempt(entry)
        if entry.error is not None:
            raise InputError(
                f"the {self.kind} {name!r} of {entry.package} {entry.version}, which fails to load ({entry.error})",
                expected=f"{entry.target} to be importable",
                fix=f"repair or uninstall {entry.package}, or choose another {self.kind}",
            )
        return cast(T, value)

    def _find(self, name: str) -> Entry:
        found = {entry.name: entry for entry in self.entries()}
        if name in found:
            return found[name]
        near = difflib.get_close_matches(name, found, n=3, cutoff=0.5)
        raise InputError(
            f"the {self.kind} {name!r}",
            expected=f"one of {', '.join(found)}",
            fix=f"did you mean {', '.join(near)}?"
            if near
            else "choose one of these, or install the package that has it",
        )


def _plug_ins(kind: str, group: str) -> tuple[Entry, ...]:
    found: dict[str, Entry] = {}
    for point in metadata.entry_points(group=group):
        package = _normalize(point.dist.name) if point.dist else "unknown"
        version = point.dist.version if point.dist else ""
        target = point.value.partition("[")[0].strip()  # without the extras that the syntax allows
        entry = Entry(name=f"{package}/{point.name}", target=target, package=package, version=version)
        if entry.name in found:
            raise InputError(
                f"the {kind} name {entry.name!r}, claimed by {found[entry.name].target} and by {entry.target}",
                expected="one claim to a name",
                fix=f"uninstall one of them, or rename one in {package}",
            )
        found[entry.name] = entry
    return tuple(found[name] for name in sorted(found))


def _normalize(distribution: str) -> str:
    """Returns the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _attempt(entry: Entry) -> tuple[Entry, object]:
    """Imports a plug-in; whatever it raises becomes the entry's error."""
    try:
        return entry, _import(entry.target)
    except Exception as error:  # a stranger's module may raise anything while it is imported
        return replace(entry, error=f"{type(error).__name__}: {error}"), None


def _import(target: str) -> object:
    module, separator, attribute = target.partition(":")
    if not (module and separator and attribute):
        raise ValueError(f"the target {target!r} is not of the form module:attribute")
    value: object = attrgetter(attribute)(import_module(module))
    return value
