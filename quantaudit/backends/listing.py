"""What there is among the quantizers of backends, as lines to list and as data to show; no library is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quantaudit.backends.library import caveat_of
from quantaudit.backends.protocol import Backend, Offer, Origin
from quantaudit.backends.registry import BACKENDS, load_backend
from quantaudit.core.errors import InputError, MissingLibraryError
from quantaudit.core.registry import Entry


class Line(NamedTuple):
    """One quantizer, or one backend that cannot be used.

    Attributes:
        name: "backend:quantizer", as `certify` takes it, or the backend alone.
        origin: Name and version of the library, or of the package that has the backend.
        description: Which catalogue scheme it is, and how often it departs; or why it cannot be used.
        error: Why it cannot be used; `None` where it can.
    """

    name: str
    origin: str
    description: str
    error: str | None = None


def list_quantizers() -> Iterator[Line]:
    """Lists the quantizers of all backends in the order of the registry.

    Raises:
        InputError: If a backend's name is claimed twice.
    """
    for entry, opener in BACKENDS.load_all():
        package = f"{entry.package} {entry.version}"
        if opener is None:
            yield Line(entry.name, package, f"does not load: {entry.error}", entry.error)
            continue
        backend = opener()
        try:
            origin = _origin(entry, backend)
        except MissingLibraryError as error:
            yield Line(entry.name, package, str(error), str(error))
            continue
        for name, offer in backend.schemes().items():
            yield Line(f"{entry.name}:{name}", origin, _describe(offer, backend.origin))


def describe_backend(name: str) -> dict[str, object]:
    """Returns all that a backend offers, or one quantizer of it, as data for JSON.

    Args:
        name: A backend, or "backend:quantizer".

    Raises:
        InputError: If there is none of that name.
    """
    backend_name, _, quantizer = name.partition(":")
    backend = load_backend(backend_name)
    offers = backend.schemes()
    if quantizer and quantizer not in offers:
        raise InputError(
            f"the quantizer {name}",
            expected=f"one of the {len(offers)} that {backend_name} offers",
            fix=f"see `quantaudit show backend {backend_name}`",
        )
    try:
        version, caveat = backend.version, caveat_of(backend)
    except MissingLibraryError:
        version, caveat = "not installed", ""
    chosen = {quantizer: offers[quantizer]} if quantizer else offers
    return {
        "backend": backend_name,
        "origin": backend.origin.value,
        "version": version,
        "caveat": caveat,
        "quantizers": {key: _as_data(offer) for key, offer in chosen.items()},
    }


def _origin(entry: Entry, backend: Backend) -> str:
    if backend.origin is Origin.RESTATED:
        return f"{entry.package} {entry.version}"
    return f"{entry.name} {backend.version}" + (" (not tested)" if caveat_of(backend) else "")


def _describe(offer: Offer, origin: Origin) -> str:
    count = len(offer.departs)
    departures = "" if not count else f", with {count} departure{'s' if count > 1 else ''}"
    return f"{'restated: ' if origin is Origin.RESTATED else ''}{offer.catalogue}{departures}"


def _as_data(offer: Offer) -> dict[str, object]:
    return {
        "catalogue": offer.catalogue,
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in offer.dtypes],
        "departs": list(offer.departs),
        "source": offer.source,
    }
