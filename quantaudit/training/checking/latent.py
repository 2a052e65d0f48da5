"""Causes that change no value yet: another rule or a plain copy with equal values, masters that lie on the grid.

A mismatch that changes no value cannot be seen in values, and some cannot be seen at all. These can, in what is said of
the weights: the arithmetic that they are stored in, and whether the trainer quantizes what is quantized already.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from quantaudit.core.scheme import Scheme
from quantaudit.core.step_log import Finding, FindingKind, Side
from quantaudit.training.checking.fingerprints import Compared, schemes_held
from quantaudit.training.checking.loop_mismatches import ANOTHER_RULE
from quantaudit.training.checking.sides import Sides

UNQUANTIZED = "unquantized"


def find_latent(step: int, sides: Sides, compared: Compared, *, was_on_grid: bool) -> tuple[Finding, ...]:
    """Returns the causes that are seen although no value differs.

    Args:
        step: The step.
        sides: What was compared.
        compared: Weights that part are left to the diagnosis.
        was_on_grid: Whether the trainer's sources were quantized already at the step before.
    """
    parted = {name for names in compared.parted.values() for name in names}
    found = list(_other_arithmetic(step, sides, parted))
    if not was_on_grid and _are_on_grid(sides):
        found.append(_requantized(step, sides))
    return tuple(found)


def _other_arithmetic(step: int, sides: Sides, parted: set[str]) -> Iterator[Finding]:
    """Yields a finding for every pair of arithmetics that differ on a side whose values do not."""
    served = sides.served()
    side = next((side for side in (Side.SENT, Side.LOADED) if side in served), None)
    if side is None:
        return
    pairs: dict[tuple[str, str], list[str]] = {}
    for name, held in schemes_held(served[side]).items():
        wanted = sides.trainer[name].scheme
        if name not in parted and not _is_same_arithmetic(wanted, held):
            pairs.setdefault((_words(wanted), _words(held)), []).append(name)
    for (train, serve), names in pairs.items():
        is_rule = UNQUANTIZED not in (train, serve)
        yield Finding(
            step=step,
            name=ANOTHER_RULE.name if is_rule else "layer-set",
            kind=FindingKind.STATE,
            code="K1" if is_rule else "K10",
            tensor=names[0],
            num_tensors=len(names),
            between=(Side.TRAINER, side),
            field="scheme",
            train=train,
            serve=serve,
            sentence="The arithmetic that is declared differs; on these values both give the same.",
            latent=True,
        )


def _is_same_arithmetic(a: Scheme | None, b: Scheme | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or a == b or a.arithmetic_digest == b.arithmetic_digest


def _words(scheme: Scheme | None) -> str:
    return UNQUANTIZED if scheme is None else scheme.name


def _are_on_grid(sides: Sides) -> bool:
    quantized = [weight for weight in sides.trainer.values() if weight.scheme is not None]
    return bool(quantized) and all(torch.equal(w.source.float(), w.values) for w in quantized)


def _requantized(step: int, sides: Sides) -> Finding:
    names = [name for name, weight in sides.trainer.items() if weight.scheme is not None]
    return Finding(
        step=step,
        name="quantized-twice",
        kind=FindingKind.STATE,
        code="K13",
        tensor=names[0],
        num_tensors=len(names),
        field="passes",
        train="from masters",
        serve="from what was quantized already",
        sentence="The masters are values of the scheme: they were read back from a quantized checkpoint.",
        latent=True,
    )
