"""The mismatch that turns one quantized side of a layer into the other: all of a small layer is tried, a large one led.

    1. A bounded number of values shows what may account for the difference; sketches show experts that were moved.
    2. What leads is counted on every value, the largest estimate first, until no other can be more.

So what is named was counted in full, and what nothing explains costs no more in a large layer than in a small one.
"""

from __future__ import annotations

from collections.abc import Collection

from quantaudit.identity.compare_confirm import confirm
from quantaudit.identity.compare_crop import as_layer
from quantaudit.identity.compare_leads import Between, find_leads
from quantaudit.identity.compare_moved import find_moved
from quantaudit.identity.mismatches import permuted_experts
from quantaudit.identity.mismatches.protocol import Finding
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
    found = _follow(layer, only) if _is_large(layer) else _try_all(layer, only)
    return found if found is not None and found.is_convincing else None


def _is_large(layer: Between) -> bool:
    """Says whether a layer is searched by leads; matrices of other shapes leave no rows to begin with."""
    sides = [(tensor, layer.other[name]) for name, tensor in layer.known.items()]
    matrices = [(known.matrices[e], other.matrices[e]) for known, other in sides for e in known.matrices]
    if any(a.shape != b.shape for a, b in matrices):
        return False
    return sum(a.shape[0] * a.shape[1] for a, _ in matrices) >= LARGE


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
    return max((f for f in found if f is not None), key=lambda finding: finding.explains, default=None)


def _follow(layer: Between, only: Collection[str]) -> Finding | None:
    if not layer.num_differing():
        return None
    best = find_moved(layer) if not only or permuted_experts.ABOUT.name in only else None
    leads = [] if best is not None and best.explains == 1 else find_leads(layer, only)
    for lead in leads[:_MOST_COUNTED]:
        if lead.estimate < max(_WORTH_COUNTING, 0.0 if best is None else best.explains):
            break
        found = confirm(lead.finding, layer)
        if found is not None and (best is None or found.explains > best.explains):
            best = found
    return best
