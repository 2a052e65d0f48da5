"""Fingerprints of all sides, and where they part.

Values are compared exactly: +0 equals -0, NaN equals NaN, nothing else is forgiven. A side whose values are the
trainer's has the trainer's fingerprint, so only the trainer's values are summed where all is well; packed weights that
arrived in the bytes in which they left are not decoded again.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import digest_of
from quantaudit.core.step_log import Side, SideCheck
from quantaudit.engines.stored import StoredTensor
from quantaudit.hooks.leaf import Leaf, matrix_lanes, value_lanes
from quantaudit.identity.fingerprint_compiled import choose_value_sum
from quantaudit.training.checking.sides import (
    Shipped,
    Sides,
    TrainedWeight,
    decode_shipped,
    is_same_storage,
    take_matrices,
)

_HEX_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What comparing the sides showed.

    Attributes:
        checks: A fingerprint a side, the trainer's first.
        parted: Module names by the pair of neighbouring sides between which their values change.
    """

    checks: tuple[SideCheck, ...]
    parted: Mapping[tuple[Side, Side], tuple[str, ...]]


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was seen of one side: leaves of expert stacks, and names of all that is not the trainer's."""

    leaves: dict[str, str] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    num_checked: int = 0
    num_matrices: int = 0


class _Held(NamedTuple):
    """A weight as one side holds it: decoded, and stored where it is."""

    side: Side
    values: Tensor
    shipped: Shipped | None


def compare_sides(sides: Sides, experts: slice) -> Compared:
    """Fingerprints every side and says which weights change from one to the next.

    Dense weights, where they are given, are compared and in no fingerprint: those are of the quantized stacks.

    Args:
        sides: What is compared.
        experts: Which experts are looked at.
    """
    served = sides.served()
    seen = {side: _Seen() for side in (Side.TRAINER, *served)}
    parted: dict[tuple[Side, Side], list[str]] = {}
    for name, trained in sides.trainer.items():
        piece = experts if trained.is_stack else slice(None)
        leaf = leaf_of_stack(trained.values[piece], piece) if trained.is_stack else ""
        _note(seen[Side.TRAINER], name, leaf, trained, piece)
        first = before = _Held(Side.TRAINER, trained.values[piece], _origin(trained, piece))
        is_trained = True
        for side, weights in served.items():
            if side is Side.DERIVED and not trained.is_stack:
                continue  # kernels have layouts of their own for expert stacks only
            if name not in weights:
                seen[side].differing.append(name)
                parted.setdefault((before.side, side), []).append(name)
                continue
            here = _read(side, take_matrices(weights[name], piece), before)
            is_as_before = _is_equal(here.values, before.values)
            if not is_as_before:
                parted.setdefault((before.side, side), []).append(name)
            # Equality is transitive, so values are compared with the trainer's only where they have changed on the way.
            is_trained = is_as_before if is_trained else _is_equal(here.values, first.values)
            if not is_trained:
                seen[side].differing.append(name)
            if trained.is_stack:
                _note(seen[side], name, leaf if is_trained else leaf_of_stack(here.values, piece), trained, piece)
            before = here
    checks = tuple(_summarize(side, one) for side, one in seen.items())
    return Compared(checks=checks, parted={leg: tuple(names) for leg, names in parted.items()})


def _origin(trained: TrainedWeight, piece: slice) -> Shipped | None:
    """Returns what a weight that is not quantized is shipped as, if it is what the trainer computes with."""
    if trained.scheme is None and _is_equal(trained.values, trained.source):
        return take_matrices(trained.source, piece)
    return None


def _read(side: Side, shipped: Shipped, before: _Held) -> _Held:
    """Decodes a weight, unless it lies in the bytes that were decoded a side earlier."""
    if before.shipped is not None and is_same_storage(shipped, before.shipped):
        return _Held(side, before.values, shipped)
    return _Held(side, decode_shipped(shipped), shipped)


def _is_equal(a: Tensor, b: Tensor) -> bool:
    """Says whether all values are equal; the slow way only where something may be NaN."""
    if a is b:
        return True
    if a.dtype is not b.dtype:
        a, b = a.float(), b.float()
    if torch.equal(a, b):
        return True
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _note(seen: _Seen, name: str, leaf: str, trained: TrainedWeight, piece: slice) -> None:
    if trained.is_stack:
        seen.leaves[name] = leaf
        seen.num_matrices += len(trained.values)
        seen.num_checked += len(range(len(trained.values))[piece])


def leaf_of_stack(values_EOI: Tensor, experts: slice) -> str:
    """Returns the leaf of some experts of a stack, at their places in the whole of it; 32 hex digits."""
    if experts.step in (None, 1) and not experts.start:
        summer = choose_value_sum(values_EOI.numel())
        return Leaf.from_lanes(value_lanes(values_EOI.reshape(-1, values_EOI.shape[-1]), summer=summer)).hex
    first, step = experts.start or 0, experts.step or 1
    parts = range(first, first + step * len(values_EOI), step)
    return Leaf.from_lanes(matrix_lanes(values_EOI, parts).sum(0)).hex


def digest_layer_set(schemes: Mapping[str, Scheme | None]) -> str:
    """Returns the digest of which weights are quantized, and by which arithmetic; whose name does not matter."""
    digests = {id(scheme): scheme.arithmetic_digest for scheme in _distinct(schemes)}
    return digest_of({name: digests[id(s)] for name, s in sorted(schemes.items()) if s is not None})


def _distinct(schemes: Mapping[str, Scheme | None]) -> Iterable[Scheme]:
    """Returns every scheme object once: a digest takes longer than all that is done with it."""
    return {id(scheme): scheme for scheme in schemes.values() if scheme is not None}.values()


def _summarize(side: Side, seen: _Seen) -> SideCheck:
    text = "\n".join(f"{name} {leaf}" for name, leaf in sorted(seen.leaves.items()))
    return SideCheck(
        side=side,
        num_tensors=len(seen.leaves),
        num_checked=seen.num_checked,
        num_matrices=seen.num_matrices,
        values=hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS],
        differing=tuple(seen.differing),
    )


def schemes_held(weights: Mapping[str, Shipped]) -> dict[str, Scheme | None]:
    """Returns the scheme in which every weight is stored; `None` for plain values."""
    return {name: w.scheme if isinstance(w, StoredTensor) else None for name, w in weights.items()}
