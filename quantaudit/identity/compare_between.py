"""The mismatch that turns one quantized side of a layer into the other: all of a small layer is tried, a large one led.

    1. A bounded number of values shows what may account for the difference; sketches show experts that were moved.
    2. What leads is counted on every value, the largest estimate first, until no other can be more; and what seems to
       account for most of one expert, since that may be the fault of this expert alone.

So what is named was counted in full, and what nothing explains costs no more in a large layer than in a small one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from quantaudit.identity.compare_confirm import confirm
from quantaudit.identity.compare_crop import as_layer
from quantaudit.identity.compare_leads import Between, find_leads
from quantaudit.identity.compare_moved import find_moved
from quantaudit.identity.mismatches import permuted_experts
from quantaudit.identity.mismatches.protocol import CONVINCING, Finding
from quantaudit.identity.mismatches.registry import MISMATCHES
from quantaudit.identity.mismatches.scoring import num_differing

LARGE = 1 << 21  # values of a layer, beyond which leads are followed
_WORTH_COUNTING = 0.25  # estimated share; half of the difference is convincing
_MOST_COUNTED = 3


def search_between(layer: Between, only: Collection[str] = ()) -> Finding | None:
    """Returns the mismatch that accounts for most; `None` if none accounts for half.

    Args:
        layer: Both sides.
        only: Names of mismatches that are asked; all if empty.
    """
    return next((found for found in search_layer(layer, only) if found.is_convincing), None)


def search_layer(layer: Between, only: Collection[str] = ()) -> list[Finding]:
    """Returns what was counted on every value, the most first; of a large layer also what is not convincing.

    Args:
        layer: Both sides.
        only: Names of mismatches that are asked; all if empty.
    """
    if is_large(layer):
        return follow(layer, only)
    found = _try_all(layer, only)
    return [] if found is None else [found]


def is_large(layer: Between) -> bool:
    """Says whether a layer is searched by leads; matrices of other shapes leave no rows to begin with."""
    matrices = [source for tensor in layer.known.values() for source in tensor.matrices.values()]
    return has_equal_shapes(layer) and sum(one.shape[0] * one.shape[1] for one in matrices) >= LARGE


def has_equal_shapes(layer: Between) -> bool:
    """Says whether every matrix has one shape on both sides."""
    sides = [(tensor.matrices, layer.other[name].matrices) for name, tensor in layer.known.items()]
    return all(one.shape == other[e].shape for known, other in sides for e, one in known.items())


def _try_all(layer: Between, only: Collection[str]) -> Finding | None:
    is_stack = all(tensor.is_stack for tensor in layer.known.values())
    train, serve = (
        as_layer(
            {name: [tensor.matrices[e].read() for e in sorted(tensor.matrices)] for name, tensor in side.items()},
            is_stack=is_stack,
        )
        for side in (layer.known, layer.other)
    )
    if num_differing(train, serve) == 0:
        return None
    found = [m.recognise(train, serve) for m in MISMATCHES if not only or m.ABOUT.name in only]
    best = max((f for f in found if f is not None), key=lambda finding: finding.explains, default=None)
    return None if best is None else _numbered(best, layer)


def _numbered(finding: Finding, layer: Between) -> Finding:
    """Returns a finding of stacked experts by their own numbers."""
    numbers = {name: sorted(tensor.matrices) for name, tensor in layer.known.items()}
    gained, differing = (
        {(name, numbers[name][place]): count for (name, place), count in counts.items()}
        for counts in (finding.gained, finding.differing)
    )
    experts = {name: tuple(numbers[name][place] for place in places) for name, places in finding.experts.items()}
    return replace(finding, experts=experts, gained=gained, differing=differing)


def follow(layer: Between, only: Collection[str] = ()) -> list[Finding]:
    """Returns what leads, counted on every value, the most first."""
    if not layer.num_differing():
        return []
    moved = find_moved(layer) if not only or permuted_experts.ABOUT.name in only else None
    counted = [] if moved is None else [moved]
    best = 0.0 if moved is None else moved.explains
    num_counted = 0
    for lead in find_leads(layer, only) if best < 1 else []:
        is_worth = lead.estimate >= max(_WORTH_COUNTING, best) or lead.somewhere >= CONVINCING
        if not is_worth or num_counted == _MOST_COUNTED or best == 1:
            continue
        num_counted += 1
        found = confirm(lead.finding, layer)
        if found is not None:
            counted.append(found)
            best = max(best, found.explains)
    return sorted(counted, key=lambda finding: -finding.explains)
