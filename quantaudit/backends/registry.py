"""Backends by name, built-in or from a plug-in: a module is imported when its backend is asked for, its library later.

A built-in lives at "module:attribute". A plug-in's entry point in the group `quantaudit.backends` names an object that
satisfies `protocol.Backend`; it is called `package/name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import TypeAlias, cast

from quantaudit.backends.protocol import Backend, Origin
from quantaudit.core.registry import Registry

Opener: TypeAlias = Callable[[], Backend]

_BUILTINS = {
    "torchao": "quantaudit.backends.torchao_backend:BACKEND",
    "torchao-qat": "quantaudit.backends.torchao_qat:BACKEND",
    "bitsandbytes": "quantaudit.backends.bitsandbytes_backend:BACKEND",
    "compressed-tensors": "quantaudit.backends.compressed_tensors_backend:BACKEND",
    "gguf": "quantaudit.backends.gguf_backend:BACKEND",
    "transformers": "quantaudit.backends.transformers_backend:BACKEND",
    "modelopt": "quantaudit.backends.modelopt_backend:BACKEND",
    "conventions": "quantaudit.backends.conventions:BACKEND",
}
_REQUIRED = ("name", "origin", "schemes", "quantize", "dequantize")  # asking for the version may import the library


def load_backend(name: str) -> Backend:
    """Returns a backend by name: a built-in one, or that of a plug-in, `package/name`; its library is not imported yet.

    Raises:
        InputError: If there is none of that name (the message names the nearest ones), or its plug-in fails to load.
    """
    return BACKENDS.load(name)()


def backend_names() -> tuple[str, ...]:
    """Lists the names of the built-in backends, then those of plug-ins; none of them is imported."""
    return BACKENDS.names()


@cache
def _open(target: str) -> Backend:
    module, _, attribute = target.partition(":")
    return cast(Backend, getattr(import_module(module), attribute))


def _openers() -> Mapping[str, Opener]:
    return {name: partial(_open, target) for name, target in _BUILTINS.items()}


def _adopt(name: str, value: object) -> Opener:
    """Returns the opener of a plug-in's backend, which keeps the name that it gives itself.

    Raises:
        TypeError: If something of the protocol is missing; it is named.
    """
    if isinstance(value, type):
        raise TypeError(f"the class {value.__name__}, not an instance of it")
    missing = [word for word in _REQUIRED if not hasattr(value, word)]
    if missing:
        raise TypeError(f"a {type(value).__name__} without {', '.join(missing)}, not a quantaudit.backends.Backend")
    backend = cast(Backend, value)
    if backend.origin not in (Origin.LIBRARY, Origin.RESTATED):
        raise TypeError(f"{name}: the origin {backend.origin!r}; a backend is a library's or restated")
    return lambda: backend


BACKENDS: Registry[Opener] = Registry(kind="backend", group="quantaudit.backends", builtins=_openers, adopt=_adopt)
