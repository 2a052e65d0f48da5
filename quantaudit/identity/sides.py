"""The two sides of a certificate: what a name stands for, and how it is run.

* `mxfp4-even`: a scheme of the catalogue; its results are read off stairs derived from exact arithmetic.
* `eager:mxfp4-even`: the same scheme by this package's tensor code.
* `fused:mxfp4-even`: the same scheme by this package's compiled code, which shows decoded values only.
* `torchao:mxfp4-rceil`: a library's own code, or a restated rule.
* `my_trainer.fq:quant`: a callable of the user, compared over the groups of the other side's scheme.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit import __version__
from quantaudit.backends.library import caveat_of
from quantaudit.backends.protocol import Backend, Origin
from quantaudit.backends.registry import backend_names, load_backend
from quantaudit.core.errors import InputError, MissingLibraryError, NotMeasuredError
from quantaudit.core.scheme import DoubleQuantization, LinearScale, Scheme
from quantaudit.identity.fast_reference import has_staircase, is_two_level
from quantaudit.identity.user_quantizer import UserQuantizer, load_user_quantizer
from quantaudit.numerics import scales
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.compiler import why_eager
from quantaudit.numerics.fused import fused_fake_quantize
from quantaudit.numerics.reference import INPUT_DTYPES, QuantizedTensor, dequantize, quantize
from quantaudit.numerics.twins import has_twin

EAGER, FUSED = "eager", "fused"
_PROBE = (128, 256)  # a matrix that every granularity divides


class Produced(NamedTuple):
    """What a side makes of one matrix: scales as fp32 numbers, codes as they are; `None` for what it does not show.

    `above` is the scale of the whole matrix where there are two levels.
    """

    scales: Tensor | None
    codes: Tensor | None
    values: Tensor
    above: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One quantizer.

    Attributes:
        name: As it was asked for.
        origin: Whose arithmetic it is.
        version: Of what runs.
        library: Name of the library, or empty.
        source: What is called, or where the arithmetic is specified.
        path: How results are computed, in a few words.
        scheme: The scheme that it is, claims to be, or is compared as.
        is_scheme: Whether the scheme is its definition.
        has_stairs: Whether results may be read off stairs.
        departs: Known departures from the scheme.
        caveat: What must be said of the version; empty if what is known of the library was tested with it.
        dtypes: Input dtypes.
        run: Quantizes a matrix; the dtype is that of decoded values where the side leaves it open.
        decode: Decodes codes and scales, if the side can do that alone.
        user: The user's callable, if it is one.
    """

    name: str
    origin: Origin
    version: str
    library: str = ""
    source: str
    path: str
    scheme: Scheme
    is_scheme: bool
    has_stairs: bool = False
    departs: tuple[str, ...] = ()
    caveat: str = ""
    dtypes: tuple[torch.dtype, ...] = INPUT_DTYPES
    run: Callable[[Tensor, torch.dtype], Produced]
    decode: Callable[[QuantizedTensor, torch.dtype], Tensor] | None = None
    user: UserQuantizer | None = None


def open_sides(a: str, b: str, like: str | None = None) -> tuple[Side, Side]:
    """Opens both sides; a user's callable takes its groups from the other side, or from `like`.

    Raises:
        InputError: If a name is unknown, or nothing says what the groups are.
        MissingLibraryError: If a library is not installed.
    """
    shape = None if like is None else get_scheme(like)
    known = {name: _open_known(name) for name in (a, b)}
    if shape is None:
        shape = next((side.scheme for side in known.values() if side is not None), None)
    if shape is None:
        raise InputError(
            f"two callables, {a} and {b}",
            expected="a scheme that says which values share a scale",
            fix="add --like SCHEME, such as --like int4-g32-div7",
        )
    first, second = (known[name] or _open_user(name, shape) for name in (a, b))
    return first, second


def open_scheme(scheme: Scheme) -> Side:
    """Returns the side of a scheme."""
    on_stairs = has_staircase(scheme) or is_two_level(scheme)
    return Side(
        name=scheme.name,
        origin=Origin.CATALOGUE,
        version=__version__,
        source=scheme.source,
        path="stairs from exact arithmetic" if on_stairs else "eager tensor code",
        scheme=scheme,
        is_scheme=True,
        has_stairs=on_stairs,
        run=partial(_run_eager, scheme),
        decode=dequantize,
    )


def stored_numbers(quantized: QuantizedTensor) -> Tensor:
    """Returns stored scales as fp32 numbers; codes of double-quantized scales stay codes."""
    rule = quantized.scheme.scale
    is_double = isinstance(rule, LinearScale) and isinstance(rule.second_level, DoubleQuantization)
    if is_double or quantized.scales.dtype != torch.uint8:
        return quantized.scales.float()
    return scales.decode_stored(quantized.scales, rule)


def _open_known(name: str) -> Side | None:
    """Opens everything but a user's callable."""
    owner, colon, rest = name.partition(":")
    if not colon:
        return open_scheme(get_scheme(name))
    if owner == EAGER:
        return _own(name, get_scheme(rest), "eager tensor code", partial(_run_eager, get_scheme(rest)))
    if owner == FUSED:
        return _own(name, get_scheme(rest), _fused_path(get_scheme(rest)), partial(_run_fused, get_scheme(rest)))
    return _open_backend(name, load_backend(owner), rest) if owner in backend_names() else None


def _fused_path(scheme: Scheme) -> str:
    if not has_twin(scheme):
        return "eager tensor code: this scheme has no compiled code"
    reason = why_eager("cpu")
    return "compiled code" if reason is None else f"eager tensor code: {reason}"


def _own(name: str, scheme: Scheme, path: str, run: Callable[[Tensor, torch.dtype], Produced]) -> Side:
    return Side(
        name=name,
        origin=Origin.CATALOGUE,
        version=__version__,
        source=scheme.source,
        path=path,
        scheme=scheme,
        is_scheme=False,
        run=run,
        decode=dequantize if name.startswith(f"{EAGER}:") else None,
    )


def _open_backend(name: str, backend: Backend, wanted: str) -> Side:
    offers = backend.schemes()
    if wanted not in offers:
        near = difflib.get_close_matches(wanted, offers, n=3, cutoff=0.4)
        raise InputError(
            f"the scheme {wanted!r} of {backend.name}",
            expected=f"one of the {len(offers)} that it offers",
            fix=f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(offers)}",
        )
    offer = offers[wanted]
    is_library = backend.origin is Origin.LIBRARY
    return Side(
        name=name,
        origin=backend.origin,
        version=backend.version,
        library=backend.name if is_library else "",
        source=offer.source,
        path="the library's own code" if is_library else "restated from a description; not the library",
        scheme=_with_own_groups(get_scheme(offer.catalogue), backend, wanted, offer.dtypes[0]),
        is_scheme=False,
        departs=offer.departs,
        caveat=caveat_of(backend),
        dtypes=offer.dtypes,
        run=partial(_run_backend, backend, wanted),
        decode=partial(_decode_backend, backend),
    )


def _with_own_groups(scheme: Scheme, backend: Backend, wanted: str, dtype: torch.dtype) -> Scheme:
    """Returns the scheme with the groups that the backend really takes, which the catalogue need not have."""
    try:
        granularity = backend.quantize(torch.ones(_PROBE, dtype=dtype), wanted).scheme.granularity
    except MissingLibraryError:
        raise
    except NotMeasuredError:  # it only decodes
        return scheme
    if granularity == scheme.granularity:
        return scheme
    words = " ".join(str(value) for value in granularity.model_dump().values())
    return scheme.model_copy(update={"granularity": granularity, "name": f"{scheme.name} by {words}"})


def _open_user(name: str, shape: Scheme) -> Side:
    user = load_user_quantizer(name)
    return Side(
        name=name,
        origin=Origin.USER,
        version="",
        source=name,
        path="the user's callable",
        scheme=shape,
        is_scheme=False,
        run=partial(_run_user, user),
        user=user,
    )


def _run_eager(scheme: Scheme, weight: Tensor, dtype: torch.dtype) -> Produced:
    quantized = quantize(weight, scheme)
    return Produced(stored_numbers(quantized), quantized.codes, dequantize(quantized, dtype), _above(quantized))


def _run_fused(scheme: Scheme, weight: Tensor, dtype: torch.dtype) -> Produced:
    return Produced(None, None, fused_fake_quantize(weight, scheme, compile_after=0))


def _run_backend(backend: Backend, wanted: str, weight: Tensor, dtype: torch.dtype) -> Produced:
    quantized = backend.quantize(weight, wanted)
    return Produced(stored_numbers(quantized), quantized.codes, backend.dequantize(quantized), _above(quantized))


def _decode_backend(backend: Backend, quantized: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    return backend.dequantize(quantized)


def _run_user(user: UserQuantizer, weight: Tensor, dtype: torch.dtype) -> Produced:
    result = user(weight)
    if isinstance(result, Tensor):
        return Produced(None, None, result)
    return Produced(stored_numbers(result), result.codes, dequantize(result, dtype), _above(result))


def _above(quantized: QuantizedTensor) -> Tensor | None:
    return quantized.second_scales if is_two_level(quantized.scheme) else None
