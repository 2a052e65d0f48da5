"""The protocol of a backend: one library's quantizers, adapted to one signature, under the names of the catalogue.

A backend runs the library's own code and only translates what it stores: codes in the numbering of the element format,
scales as the catalogue stores them, so that two backends can be compared scale by scale and code by code. Values come
from the library's own dequantization. A rule restated from a description, its kernel not run, is labelled so and never
stands for the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from quantaudit.numerics.reference import QuantizedTensor


class Origin(StrEnum):
    """Whose arithmetic it is."""

    CATALOGUE = "catalogue"  # our reference, from the data of a scheme
    LIBRARY = "library"  # the code of an installed library
    RESTATED = "restated"  # a rule re-typed from a description or from code whose kernel needs a GPU
    USER = "user"  # a callable given by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One quantizer of a backend.

    Attributes:
        name: Name within the backend, such as "mxfp4-rceil".
        catalogue: Name of the catalogue scheme it implements, or comes closest to.
        dtypes: Input dtypes it accepts.
        departs: Sentences, one a kind of block or value on which it departs from the catalogue scheme; none if it is
            the same function. What they say is tested.
        source: What is called, such as "torchao.prototype.mx_formats.mx_tensor.to_mx".
    """

    name: str
    catalogue: str
    dtypes: tuple[torch.dtype, ...]
    departs: tuple[str, ...] = ()
    source: str


class Backend(Protocol):
    """One library, or one collection of restated rules."""

    name: str
    origin: Origin

    @property
    def version(self) -> str:
        """Version of the library; of this package for restated rules."""
        ...

    def schemes(self) -> Mapping[str, Offer]:
        """Returns what the backend offers, by name; costs no import of the library."""
        ...

    def quantize(self, weight: Tensor, scheme: str) -> QuantizedTensor:
        """Quantizes by the library's own code.

        Args:
            weight: `[R, C]` or `[E, R, C]`, fp32 or bf16 as the offer says.
            scheme: A name from `schemes`.

        Returns:
            Codes and scales in the catalogue's conventions; `scheme` is the catalogue scheme, which the numbers need
            not follow.

        Raises:
            InputError: If the scheme or dtype is not offered, or the shape cannot be quantized.
            MissingLibraryError: If the library is not installed.
        """
        ...

    def dequantize(self, quantized: QuantizedTensor) -> Tensor:
        """Returns the values by the library's own code, in the dtype that the library gives."""
        ...
