"""What an adapter of a library does before the library is asked: find the offer, check dtype and shape, load quietly.

The offers of a library are data that cost no import of it. Its code stands in another file, which is opened when the
first tensor is quantized.
"""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import NamedTuple, final

import torch
from torch import Tensor

from quantaudit.backends.protocol import Backend, Offer, Origin
from quantaudit.core.errors import InputError, MissingLibraryError
from quantaudit.core.scheme import Scheme
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import QuantizedTensor

_FEW = 8  # names that a message can list


class Code(NamedTuple):
    """The code of a library behind its offers.

    Attributes:
        quantizers: By the name of the offer; each takes a contiguous weight and the scheme that its result carries.
        dequantize: Decodes what any of them made.
    """

    quantizers: Mapping[str, Callable[[Tensor, Scheme], QuantizedTensor]]
    dequantize: Callable[[QuantizedTensor], Tensor]


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Returns the matrices of a stack as one tensor, [S, ...]; one alone is not copied."""
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(tuple(parts))


@final
@dataclass(kw_only=True, eq=False)
class LibraryBackend:
    """A backend whose arithmetic is the code of one installed distribution.

    Attributes:
        name: Registered name.
        distribution: Name on the package index.
        tested: Version prefix with which what the offers say was tested, such as "0.18.".
        offers: By name.
        open_code: Imports the library; called once.
        extra: The extra of this package that brings the library; empty for none.
        origin: A library's, unless an adapter restates.
    """

    name: str
    distribution: str
    tested: str
    offers: Mapping[str, Offer]
    open_code: Callable[[], Code]
    extra: str = ""
    origin: Origin = Origin.LIBRARY

    @property
    def version(self) -> str:
        """Version of the installed library.

        Raises:
            MissingLibraryError: If it is not installed.
        """
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            raise MissingLibraryError(self.distribution, extra=self.extra) from None

    @property
    def caveat(self) -> str:
        """What must be said of the installed version; empty if it is one of those that were tested.

        Raises:
            MissingLibraryError: If it is not installed.
        """
        version = self.version
        if version.startswith(self.tested):
            return ""
        return f"{self.distribution} {version}: what is said of its quantizers was tested with {self.tested}*"

    def schemes(self) -> Mapping[str, Offer]:
        """Returns what the backend offers, by name; costs no import of the library."""
        return self.offers

    def quantize(self, weight: Tensor, scheme: str) -> QuantizedTensor:
        """Quantizes by the library's own code; see `protocol.Backend`.

        Raises:
            InputError: If the scheme or dtype is not offered, or the shape cannot be quantized.
            MissingLibraryError: If the library is not installed.
        """
        offer = self._find(scheme)
        carried = self.scheme_of(scheme)
        _check(weight, f"{self.name}:{scheme}", offer, carried)
        with torch.no_grad():
            return self._code.quantizers[scheme](weight.detach().contiguous(), carried)

    def dequantize(self, quantized: QuantizedTensor) -> Tensor:
        """Returns the values by the library's own code, in the dtype of the tensor that was quantized."""
        with torch.no_grad():
            return self._code.dequantize(quantized)

    def scheme_of(self, name: str) -> Scheme:
        """Returns the scheme that the results of an offer carry."""
        return get_scheme(self._find(name).catalogue)

    def _find(self, name: str) -> Offer:
        if name in self.offers:
            return self.offers[name]
        near = difflib.get_close_matches(name, self.offers, n=3, cutoff=0.5)
        few = len(self.offers) <= _FEW
        raise InputError(
            f"the quantizer {self.name}:{name}",
            expected=f"one of {', '.join(self.offers)}" if few else f"one of the {len(self.offers)} that it offers",
            fix=f"did you mean {', '.join(near)}?" if near else "see `quantaudit list backends`",
        )

    @cached_property
    def _code(self) -> Code:
        if self.caveat:
            warnings.warn(self.caveat, stacklevel=3)
        with _quiet():
            return self.open_code()


def caveat_of(backend: Backend) -> str:
    """Returns what must be said of a backend's version: something only if its library is newer or older than tested.

    Raises:
        MissingLibraryError: If its library is not installed.
    """
    return backend.caveat if isinstance(backend, LibraryBackend) else ""


def _check(weight: Tensor, what: str, offer: Offer, scheme: Scheme) -> None:
    if weight.dtype not in offer.dtypes:
        accepted = " or ".join(str(dtype).removeprefix("torch.") for dtype in offer.dtypes)
        raise InputError(f"a weight of {weight.dtype} for {what}", expected=accepted, fix="cast it first")
    if weight.dim() not in (2, 3) or weight.numel() == 0:
        raise InputError(
            f"a weight of shape {list(weight.shape)} for {what}",
            expected="a matrix [rows, columns] or a stack [experts, rows, columns], not empty",
            fix="reshape it, or leave it out",
        )
    plan(tuple(weight.shape), scheme.granularity)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps warnings that a library logs while it is imported, about kernels of other machines, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
