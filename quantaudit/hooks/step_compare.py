"""Compares two sides matrix by matrix: leaves first, and values only where leaves differ and both sides have them.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.hooks.findings import Fault, FirstDifference, TensorFinding
from quantaudit.hooks.leaf import Leaf, canonical_words
from quantaudit.hooks.sides import Side, TensorSide, Unit, leaves_of

# Values read at a time, if a matrix has fewer: small matrices are compared together, large ones one by one.
_VALUES_AT_ONCE = 1 << 20


class Compared(NamedTuple):
    """What a comparison of leaves gives.

    Attributes:
        num_units: Matrices there are, whether their turn it was or not.
        num_checked: Those whose turn it was.
        leaves: The trainer's, of those; empty if they are neither needed nor to be kept.
        different: By tensor, the served leaves that differ.
        not_served: Tensors that the engine does not have.
    """

    num_units: int
    num_checked: int
    leaves: Mapping[Unit, Leaf]
    different: Mapping[str, Mapping[Unit, Leaf]]
    not_served: tuple[str, ...]


def compare_sides(trainer: Side, engine: Side, *, turn: int, rotate: int, keep_leaves: bool) -> Compared:
    """Compares the matrices whose turn it is; what the engine has beyond the trainer's tensors is not looked at.

    Args:
        trainer: One side.
        engine: The other.
        turn: Which of the turns it is.
        rotate: After how many turns every matrix was looked at.
        keep_leaves: Whether leaves are wanted; without, tensors that are equal need none, which is much faster.

    Raises:
        InputError: If the sides are those of two models, or there are more turns than matrices.
    """
    units = _common_units(trainer, engine)
    if rotate > len(units):
        raise InputError(
            f"rotate={rotate} for {len(units)} matrices",
            expected="no more turns than matrices, so that no check looks at nothing",
            fix=f"set rotate to {len(units)} or less",
        )
    sample = units[turn::rotate]
    leaves: dict[Unit, Leaf] = {}
    different: dict[str, dict[Unit, Leaf]] = {}
    for batch in _batches(sample, trainer):
        pairs = {unit: (trainer.read(unit), engine.read(unit)) for unit in batch}
        unequal = [unit for unit, (mine, theirs) in pairs.items() if not mine.has_values_of(theirs)]
        wanted = list(pairs) if keep_leaves else unequal
        leaves |= zip(wanted, leaves_of([pairs[unit][0] for unit in wanted]), strict=True)
        for unit, served in zip(unequal, leaves_of([pairs[unit][1] for unit in unequal]), strict=True):
            if served != leaves[unit]:
                different.setdefault(unit.name, {})[unit] = served
    not_served = tuple(sorted(set(trainer.names) - set(engine.names)))
    return Compared(len(units), len(sample), leaves, different, not_served)


def _batches(units: list[Unit], side: Side) -> Iterator[list[Unit]]:
    """Yields the matrices in their order, as many as may be read at a time."""
    batch: list[Unit] = []
    count = 0
    for unit in units:
        shape = side.shape(unit.name)
        size = math.prod(shape if unit.part is None else shape[1:])
        if batch and count + size > _VALUES_AT_ONCE:
            yield batch
            batch, count = [], 0
        batch.append(unit)
        count += size
    yield batch


def describe(name: str, units: Iterable[Unit], trainer: Side, engine: Side, explanation: str) -> TensorFinding:
    """Returns what is wrong with a tensor of which these matrices differ."""
    parts = [unit.part for unit in units]
    first = None
    if isinstance(trainer, TensorSide) and isinstance(engine, TensorSide):
        first = _locate(name, parts, trainer, engine)
    return TensorFinding(
        name=name,
        fault=Fault.VALUES,
        experts=tuple(part for part in parts if part is not None),
        first=first,
        explanation=explanation,
    )


def _common_units(trainer: Side, engine: Side) -> list[Unit]:
    names = sorted(set(trainer.names) & set(engine.names))
    if not names:
        raise InputError(
            f"an engine with tensors like {min(engine.names, default='none')!r}",
            expected=f"the model of the trainer, with tensors like {min(trainer.names, default='none')!r}",
            fix="give both sides logical names, with `hold` or `read_experts`",
        )
    units: list[Unit] = []
    for name in names:
        if trainer.shape(name) != engine.shape(name):
            raise InputError(
                f"{name} of shape {list(engine.shape(name))} in the engine",
                expected=f"{list(trainer.shape(name))} as in the trainer",
                fix="serve the model that is trained",
            )
        count = min(trainer.num_parts(name), engine.num_parts(name))
        units += [Unit(name, part) for part in range(count)] if count > 1 else [Unit(name, None)]
    return units


def _locate(name: str, parts: Iterable[int | None], trainer: TensorSide, engine: TensorSide) -> FirstDifference:
    """Finds the first differing value; there is one, since leaves of equal values are equal."""
    coordinate: tuple[int, ...] = ()
    bits, num_values = ("", ""), 0
    all_parts = [p for part in parts for p in ([part] if part is not None else range(trainer.num_parts(name)))]
    for part in all_parts:
        a_RC, b_RC = (_words(side.values(name, part)) for side in (trainer, engine))
        at = (a_RC != b_RC).nonzero()
        num_values += len(at)
        if len(at) and not coordinate:
            row, col = at[0].tolist()
            coordinate = (part, row, col) if len(trainer.shape(name)) == 3 else (row, col)
            bits = (_hex(a_RC[row, col]), _hex(b_RC[row, col]))
    return FirstDifference(coordinate=coordinate, trainer_bits=bits[0], served_bits=bits[1], num_values=num_values)


def _words(values_RC: Tensor) -> Tensor:
    return canonical_words(values_RC.float().contiguous().view(torch.int32)).cpu()


def _hex(word: Tensor) -> str:
    return f"{int(word) & 0xFFFFFFFF:08x}"
