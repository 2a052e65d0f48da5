"""Who quantizes: a scheme of the catalogue by the reference, or a quantizer of a library through its backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit import __version__
from quantaudit.backends import Backend, backend_names, load_backend
from quantaudit.backends.library import caveat_of
from quantaudit.backends.protocol import Offer, Origin
from quantaudit.core.errors import InputError, MissingLibraryError, NotMeasuredError
from quantaudit.core.scheme import Scheme
from quantaudit.numerics import dequantize, get_scheme, quantize
from quantaudit.numerics.reference import INPUT_DTYPES

CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a side made of the weights.

    Attributes:
        scales: As stored; `None` where the side only decodes.
        codes: In the numbering of the element format; `None` likewise.
        values: In the dtype in which the side decodes.
        scheme: Catalogue scheme.
    """

    scales: Tensor | None
    codes: Tensor | None
    values: Tensor
    scheme: Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One quantizer.

    Attributes:
        name: "backend:quantizer", or a scheme of the catalogue.
        backend: Name of the backend, or "catalogue".
        version: Of what runs.
        origin: Whose arithmetic it is.
        scheme: Name of the catalogue scheme that it is or comes closest to.
        dtypes: Dtypes that it takes.
        departs: Departures that are known beforehand.
        caveat: What must be said of the version; empty if it was tested.
        run: Quantizes and decodes weights.
    """

    name: str
    backend: str
    version: str
    origin: Origin
    scheme: str
    dtypes: tuple[torch.dtype, ...]
    departs: tuple[str, ...]
    caveat: str = ""
    run: Callable[[Tensor], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Something that was not checked, and why."""

    name: str
    reason: str


def catalogue_side(name: str) -> Side:
    """Returns a scheme of the catalogue as a side."""
    scheme = get_scheme(name)
    return Side(
        name=name,
        backend=CATALOGUE,
        version=__version__,
        origin=Origin.CATALOGUE,
        scheme=name,
        dtypes=INPUT_DTYPES,
        departs=(),
        run=lambda x: reference_of(x, scheme),
    )


def reference_of(x: Tensor, scheme: Scheme, decoded: torch.dtype | None = None) -> Outcome:
    """Runs the reference, and decodes to `decoded` or else to the dtype of `x`."""
    quantized = quantize(x, scheme)
    values = dequantize(quantized, decoded)
    return Outcome(scales=quantized.scales, codes=quantized.codes, values=values, scheme=scheme)


def find_sides(backends: Iterable[str] | None = None) -> tuple[tuple[Side, ...], tuple[Absent, ...]]:
    """Returns the quantizers of all backends that are installed, and the backends that are not."""
    sides: list[Side] = []
    absent: list[Absent] = []
    for name in backend_names() if backends is None else backends:
        try:
            backend = load_backend(name)
            sides += _sides_of(name, backend)
        except (InputError, MissingLibraryError) as error:
            absent.append(Absent(name=name, reason=str(error)))
    return tuple(sides), tuple(absent)


def _sides_of(name: str, backend: Backend) -> Iterator[Side]:
    version = backend.version
    for offer in backend.schemes().values():
        yield Side(
            name=f"{name}:{offer.name}",
            backend=name,
            version=version,
            origin=backend.origin,
            scheme=offer.catalogue,
            dtypes=offer.dtypes,
            departs=offer.departs,
            caveat=caveat_of(backend),
            run=_runner(backend, offer),
        )


def _runner(backend: Backend, offer: Offer) -> Callable[[Tensor], Outcome]:
    def run(x: Tensor) -> Outcome:
        try:
            quantized = backend.quantize(x, offer.name)
        except NotMeasuredError:
            # its quantizer does not run here, its decoder does
            ours = quantize(x, get_scheme(offer.catalogue))
            return Outcome(scales=None, codes=None, values=backend.dequantize(ours), scheme=ours.scheme)
        values = backend.dequantize(quantized)
        return Outcome(scales=quantized.scales, codes=quantized.codes, values=values, scheme=quantized.scheme)

    return run
