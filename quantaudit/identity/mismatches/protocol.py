"""What a structural mismatch is: a name, what it does to a layer, and how it is recognised from both sides.

A *layer* is the projections of one MoE layer, or a single tensor, as one side holds it, in logical coordinates
[E, R, C]. `apply` takes the trainer's layer to what the server then holds; `recognise` compares that prediction, in
every variant of the fault, with what the server does hold. With d the number of values that differ between the sides
and p the number that still differ from the prediction,

    explains = (d - p) / d,    summed over the experts for which it is positive,

so 1 means that the fault accounts for every bit, and what breaks more than it explains counts for nothing. Where no
value differs there is nothing to recognise: a fault that would change no value of this layer is *latent* in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.layouts.stored import StoredMatrix
from quantaudit.numerics.reference import QuantizedTensor

LEAST_EXPLAINED = 0.05  # less than this is what unrelated faults have in common by chance
CONVINCING = 0.5
FEW_VALUES = 64  # of an expert: half of fewer is explained by chance


class Kind(StrEnum):
    """The kinds of train-serve mismatch."""

    SCALE_RULE = "K1"  # how a power-of-two scale is chosen
    RANGE = "K2"  # integer range, divisor, estimator, group size
    ARITHMETIC = "K3"  # dtype, order of operations, reciprocal, dtype of the source
    TIES = "K4"
    FLOORS = "K5"  # floors, zero blocks, infinities
    FP8_FLAVOUR = "K6"
    SHARED_SCALE = "K7"
    LAYOUT = "K8"
    STALE = "K9"  # not quantized again after an update
    LAYER_SET = "K10"
    SHARDING = "K11"  # sharding and the identity of experts
    CALIBRATION = "K12"
    REPEATED = "K13"  # quantized twice
    ROUTER = "K14"
    BEHAVIOUR = "K15"


class Projection(StrEnum):
    """Which matrix of an expert it is."""

    GATE = "gate"
    UP = "up"
    DOWN = "down"
    GATE_UP = "gate_up"  # fused: rows of gate, then rows of up
    WHOLE = "whole"  # a tensor of which nothing else is known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """One weight as one side holds it.

    Attributes:
        values: [E, R, C] or [R, C], fp32 or bf16: what the side computes with, decoded.
        quantized: Codes and scales, in the same shape; `None` where it is stored unquantized, or they are not known.
        scheme: What the rules give this weight, quantized or not; `None` where that is not known.
        master: The unquantized weight it was made from, same shape; `None` where that is not known.
        earlier: The masters before the last update, before the one before, and so on; as many as are known.
        slack: Relative difference of values that how they are stored accounts for; 0 where it is exact.
    """

    values: Tensor
    quantized: QuantizedTensor | None = None
    scheme: Scheme | None = None
    master: Tensor | None = None
    earlier: tuple[Tensor, ...] = ()
    slack: float = 0.0


Layer: TypeAlias = Mapping[Projection, Weight]


class Places(NamedTuple):
    """Some values of one expert: the projection they are in, their rows and their columns, [K] int64 each.

    Those of gate and up together are in `GATE_UP`, whose rows are those of gate, then those of up.
    """

    projection: Projection
    rows_K: Tensor
    cols_K: Tensor


# Where in the trainer's matrix, of [R, C], the values come from that the server has at some places; `None` where values
# of that projection stay, or it is not the matrix that they move in.
Locate: TypeAlias = Callable[[Places, tuple[int, int]], Places | None]

# Makes a matrix that the server holds of one as the trainer stores it; `None` where its layout does not allow that.
Rewrite: TypeAlias = Callable[[StoredMatrix], StoredMatrix | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a mismatch is called and which setting of train and serve it separates.

    Attributes:
        name: As in `quantaudit simulate --inject NAME`, such as "nibble-order".
        kind: K1 to K15.
        field: The setting on which the sides disagree, dotted, such as "layout.nibbles".
        sentence: What happened, with a verb.
    """

    name: str
    kind: Kind
    field: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one mismatch accounts for, in its best variant.

    Attributes:
        about: The mismatch.
        train: Value of its field on the trainer's side.
        serve: On the server's side.
        explains: Share of the differing values that it accounts for; 1 is all of them, bit for bit.
        num_differing: Values that differ between the sides.
        num_left: Those that still differ from the prediction.
        experts: Experts that it touches, by projection; (0,) for a single matrix.
        predict: Makes the server's layer from the trainer's; `None` where it needs more than these.
        is_by_rows: Whether it makes any rows from the same rows alone.
        rewrite: Makes single matrices as `predict` does, without decoding; `None` where it needs more than these.
        largest_share: Of what differs in one expert, the share that it accounts for there, where that is largest.
        gained: Values that it accounts for, by projection and expert.
        differing: Values that differ, by projection and expert.
    """

    about: About
    train: str
    serve: str
    explains: float
    num_differing: int
    num_left: int
    experts: Mapping[Projection, tuple[int, ...]]
    predict: Callable[[Layer], Layer | None] | None = field(default=None, repr=False, compare=False)
    is_by_rows: bool = False
    rewrite: Rewrite | None = field(default=None, repr=False, compare=False)
    largest_share: float = 0.0
    gained: Mapping[tuple[Projection, int], int] = field(default_factory=dict, repr=False, compare=False)
    differing: Mapping[tuple[Projection, int], int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_convincing(self) -> bool:
        """Says whether it accounts for at least half of what differs."""
        return self.explains >= CONVINCING

    @property
    def is_convincing_somewhere(self) -> bool:
        """Says whether it accounts for at least half of what differs in some expert."""
        return self.is_convincing or self.largest_share >= CONVINCING

    @property
    def convinces_in(self) -> tuple[Projection, ...]:
        """Returns the projections of which it accounts for at least half, or for half of some expert there."""
        return tuple(name for name in Projection if self._is_convincing_in(name))

    def _is_convincing_in(self, name: Projection) -> bool:
        counts = {matrix: count for matrix, count in self.differing.items() if matrix[0] is name and count}
        gained = {matrix: self.gained.get(matrix, 0) for matrix in counts}
        in_all = sum(gained.values()) >= CONVINCING * sum(counts.values())
        one = any(gained[m] >= CONVINCING * count for m, count in counts.items() if count >= FEW_VALUES)
        return bool(counts) and (in_all or one)


class Mismatch(Protocol):
    """One mismatch; every file of this package is one."""

    ABOUT: About

    def apply(self, layer: Layer) -> Layer | None:
        """Returns what the server holds when it happens to the trainer's layer, in its most common variant.

        Returns `None` where it cannot happen: another format, no gate and up, a single expert, an unknown master. The
        weights that it leaves alone are returned as they are.
        """
        ...

    def recognise(self, train: Layer, serve: Layer) -> Finding | None:
        """Returns the variant that accounts for most of what differs; `None` if none accounts for anything.

        Args:
            train: The trainer's side, with the codes, masters and earlier masters that are known.
            serve: The server's side: the same projections; values are enough.
        """
        ...
