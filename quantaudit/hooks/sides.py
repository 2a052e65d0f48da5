"""The two sides of a step's audit: tensors at hand, or the manifest of tensors elsewhere, as leaves of matrices.

A tensor of three axes is a stack of matrices, one an expert; any other is one matrix, rows of its last axis.

Shape suffixes: E experts, O out, I in, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.manifest import Manifest, TensorDigest
from quantaudit.core.scheme import Scheme
from quantaudit.hooks.leaf import Leaf, leaf_of_values, matrix_lanes

Quantize: TypeAlias = Callable[[Tensor], Tensor]  # from a master matrix [O, I] to its fake-quantized values
State: TypeAlias = "Mapping[str, Tensor] | Manifest"

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Unit(NamedTuple):
    """What is compared at a time: a matrix, or the whole tensor where a side has one leaf of it (`None`)."""

    name: str
    part: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A matrix, or the matrices of a tensor, of one side.

    Attributes:
        values: Each [R, C]; empty if only the leaf is known.
        first_part: Which matrix of the tensor the first one is.
        known: The leaf, if values are elsewhere.
    """

    values: tuple[Tensor, ...] = ()
    first_part: int = 0
    known: Leaf | None = None

    def leaf(self) -> Leaf:
        """Returns the leaf, which has to be computed if values are at hand."""
        if self.known is not None:
            return self.known
        numbered = enumerate(self.values, start=self.first_part)
        return sum((leaf_of_values(x_RC, first_row=i * x_RC.shape[0]) for i, x_RC in numbered), Leaf())

    def has_values_of(self, other: Reading) -> bool:
        """Returns whether both have values that are equal as numbers, which no NaN is: then leaves are equal too."""
        pairs = zip(self.values, other.values, strict=False)
        return bool(self.values and other.values) and all(
            a.device == b.device and torch.equal(a.float(), b.float()) for a, b in pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorSide:
    """Tensors at hand.

    Attributes:
        tensors: By name.
        quantize: Applied to every matrix first; `None` if that was done.
    """

    tensors: Mapping[str, Tensor]
    quantize: Quantize | None = None

    @property
    def names(self) -> Collection[str]:
        """Returns the names of its tensors."""
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(self.tensors[name].shape)

    def num_parts(self, name: str) -> int:
        """Returns the experts of a stack, or 1."""
        shape = self.shape(name)
        return shape[0] if len(shape) == 3 else 1

    def read(self, unit: Unit) -> Reading:
        """Returns a matrix, or all of a tensor, quantized once."""
        name, part = unit
        parts = range(self.num_parts(name)) if part is None else range(part, part + 1)
        return Reading(values=tuple(self.values(name, i) for i in parts), first_part=parts.start)

    def values(self, name: str, part: int) -> Tensor:
        """Returns the values of a matrix, [R, C].

        Raises:
            InputError: If they are no floating-point numbers of 32 bits or fewer.
        """
        tensor = self.tensors[name].detach()
        if tensor.dtype not in _FLOATS:
            raise InputError(
                f"{name} in {tensor.dtype}", expected="float32, bfloat16 or float16", fix="decode it first"
            )
        if tensor.dim() == 3:
            matrix_RC = tensor[part]
        else:
            matrix_RC = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
        return matrix_RC if self.quantize is None else self.quantize(matrix_RC)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestSide:
    """The manifest of tensors that are elsewhere."""

    digests: Mapping[str, TensorDigest]

    @property
    def names(self) -> Collection[str]:
        """Returns the names of its tensors."""
        return self.digests.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return self.digests[name].shape

    def num_parts(self, name: str) -> int:
        """Returns the experts that have digests, or 1."""
        return len(self.digests[name].experts) or 1

    def read(self, unit: Unit) -> Reading:
        """Returns the leaf of an expert, or of the whole."""
        digest = self.digests[unit.name]
        return Reading(known=Leaf.from_hex(digest.values if unit.part is None else digest.experts[unit.part]))


Side: TypeAlias = TensorSide | ManifestSide


def leaves_of(readings: Sequence[Reading]) -> list[Leaf]:
    """Returns the leaf of every reading; matrices of one shape are summed together, which is faster by far."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, reading in enumerate(readings):
        if reading.known is None and len(reading.values) == 1:
            (x_RC,) = reading.values
            groups.setdefault((x_RC.shape, x_RC.dtype, x_RC.device), []).append(place)
    found: dict[int, Leaf] = {}
    for places in groups.values():
        stack = torch.stack([readings[place].values[0] for place in places])
        lanes = matrix_lanes(stack, [readings[place].first_part for place in places])
        found |= {place: Leaf.from_lanes(one) for place, one in zip(places, lanes.cpu(), strict=True)}
    return [found[place] if place in found else reading.leaf() for place, reading in enumerate(readings)]


def open_state(state: State, quantize: Quantize | None = None) -> TensorSide | ManifestSide:
    """Returns a state as a side."""
    if isinstance(state, Manifest):
        return ManifestSide(digests={digest.name: digest for digest in state.tensors})
    return TensorSide(tensors=state, quantize=quantize)


def check_declared(trainer: State, served: State, scheme: Scheme | None) -> None:
    """Checks that manifests were made by the scheme of the run, and in one way.

    Raises:
        InputError: If they were not.
    """
    manifests = [state for state in (trainer, served) if isinstance(state, Manifest)]
    if len({manifest.decoded_to for manifest in manifests}) > 1:
        raise InputError("manifests of two dtypes", expected="codes decoded to one", fix="export both with one")
    declared = {m.arithmetic_digest: m.scheme for m in manifests if m.arithmetic_digest is not None}
    if scheme is not None:
        declared.setdefault(scheme.arithmetic_digest, scheme.name)
    if len(declared) > 1:
        raise InputError(
            f"manifests and a run of the schemes {' and '.join(sorted(map(str, declared.values())))}",
            expected="one scheme",
            fix="fingerprint with the scheme of the run",
        )
