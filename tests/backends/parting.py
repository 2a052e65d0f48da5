"""Where a backend and a scheme part: group by group, in scales, in codes and in values.

A sentence in an offer's `departs` is tested by two calls: there the two part, and with the groups that all sentences
name left out they nowhere do. `like` is the catalogue scheme, or that with the arithmetic which the sentences state.

Shape suffixes: G groups of a matrix, N members of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantaudit.backends.protocol import Backend
from quantaudit.core.scheme import Scheme
from quantaudit.numerics import dequantize, get_scheme, quantize
from quantaudit.numerics.grouping import plan, to_groups
from tests.numerics.bits import bits
from tests.numerics.structured import MATRICES

DTYPES = [torch.float32, torch.bfloat16]


class Parting(NamedTuple):
    """One matrix on both sides: the input, what parts, and the values of the backend."""

    groups_GN: Tensor  # fp32
    absmax_G: Tensor  # fp32, NaN where a member is
    scales_G: Tensor
    codes_GN: Tensor
    values_GN: Tensor  # +0 equals -0, NaN equals NaN
    their_scales_G: Tensor
    their_codes_GN: Tensor
    their_values_GN: Tensor  # fp32

    @property
    def anywhere_G(self) -> Tensor:
        """Groups in which anything parts."""
        return self.scales_G | self.codes_GN.any(-1) | self.values_GN.any(-1)

    def is_clear_of(self, special_G: Tensor) -> bool:
        """Whether nothing parts outside these groups."""
        return not bool((self.anywhere_G & ~special_G).any())


def part(backend: Backend, name: str, x: Tensor, like: Scheme) -> Parting:
    """Quantizes a matrix on both sides and compares; decoded values are compared in the dtype of the backend's."""
    theirs, ours = backend.quantize(x, name), quantize(x, like)
    values = backend.dequantize(theirs)
    assert theirs.codes.shape == ours.codes.shape and theirs.codes.dtype == ours.codes.dtype
    assert theirs.scales.shape == ours.scales.shape and theirs.scales.dtype == ours.scales.dtype
    cut = plan(tuple(x.shape), like.granularity)
    groups_GN = to_groups(x.float(), cut).flatten(0, 1)
    their_codes_GN, their_values_GN = (to_groups(t, cut).flatten(0, 1) for t in (theirs.codes, values.float()))
    our_values_GN = to_groups(dequantize(ours, values.dtype).float(), cut).flatten(0, 1)
    return Parting(
        groups_GN=groups_GN,
        absmax_G=groups_GN.abs().amax(-1),
        scales_G=(bits(theirs.scales.float()) != bits(ours.scales.float())).flatten(),
        codes_GN=their_codes_GN != to_groups(ours.codes, cut).flatten(0, 1),
        # Adding +0 turns -0 into +0 and changes nothing else.
        values_GN=bits(their_values_GN + 0) != bits(our_values_GN + 0),
        their_scales_G=theirs.scales.flatten(),
        their_codes_GN=their_codes_GN,
        their_values_GN=their_values_GN,
    )


def every_matrix(dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields all structured matrices, and Gaussian rows of lognormal size."""
    for make in MATRICES.values():
        yield make().to(dtype)
    yield weights(128).to(dtype)


def weights(rows: int, cols: int = 256) -> Tensor:
    """Returns Gaussian weights with lognormal row scales."""
    return torch.randn(rows, cols) * torch.exp(torch.randn(rows, 1))


def rows_of(size: int, *heads: list[float]) -> Tensor:
    """Returns one group a row: what is given, filled with zeros."""
    x = torch.zeros(len(heads), size)
    for row, head in zip(x, heads, strict=True):
        row[: len(head)] = torch.tensor(head)
    return x


def changed(name: str, *, scale: dict[str, Any] | None = None, **fields: Any) -> Scheme:
    """Returns a catalogue scheme with some fields of its scale rule, and some of its own, replaced."""
    scheme = get_scheme(name)
    rule = scheme.scale.model_copy(update=scale or {})
    return scheme.model_copy(update={"scale": rule, **fields})


def nowhere(p: Parting) -> Tensor:
    """Names no group."""
    return torch.zeros_like(p.scales_G)


def assert_clear(
    backend: Backend, name: str, like: Scheme, dtype: torch.dtype, special: Callable[[Parting], Tensor] = nowhere
) -> None:
    """Checks that on every matrix nothing parts outside the groups that `special` names."""
    for x in every_matrix(dtype):
        p = part(backend, name, x, like)
        assert p.is_clear_of(special(p)), (name, dtype, p.absmax_G[p.anywhere_G & ~special(p)])


def agrees(parts: Tensor, stated: float, unit: float, num_stated: int = 1_024_000) -> bool:
    """Says whether the share of true values lies in the 99 % interval around one that was stated.

    Values of a group share a scale and are not independent, groups are: with r the shares of G groups of N, the mean
    has the variance var(r) / G, and that which was stated, of `num_stated` values, var(r) / (num_stated / N).

    Args:
        parts: [G, N], where the sides part.
        stated: The share on record.
        unit: Its last digit.
        num_stated: How many values it was measured on.
    """
    share_G = parts.double().mean(1)
    variance = share_G.var() * (1 / len(share_G) + parts.shape[1] / num_stated)
    return abs(float(share_G.mean()) - stated) <= 2.576 * float(variance.sqrt()) + unit / 2
