"""Backends: the quantizers of other libraries, one file a library, behind one protocol. Read `protocol` first.

Names load when first used; a library is imported when it first quantizes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.backends.protocol import Backend, Offer, Origin
    from quantaudit.backends.registry import BACKENDS, backend_names, load_backend

__all__ = ["BACKENDS", "Backend", "Offer", "Origin", "backend_names", "load_backend"]

_HOMES = {
    "BACKENDS": "registry",
    "Backend": "protocol",
    "Offer": "protocol",
    "Origin": "protocol",
    "backend_names": "registry",
    "load_backend": "registry",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
