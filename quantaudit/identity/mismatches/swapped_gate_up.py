"""Gate and up change places: the activation is applied to the other half."""

from __future__ import annotations

import torch

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Places, Projection
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import gate_and_up, with_gate_and_up

ABOUT = About(
    name="swapped-gate-up",
    kind=Kind.LAYOUT,
    field="layout.gate_up",
    sentence="Gate is served as up, and up as gate.",
)


def apply(layer: Layer) -> Layer | None:
    """Exchanges gate and up, or the halves of a fused matrix."""
    rows = gate_and_up(layer)
    return None if rows is None else with_gate_and_up(layer, torch.cat(rows.chunk(2, -2)[::-1], -2))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's up in the place of gate and its gate in the place of up."""
    return best(ABOUT, train, serve, variants())


def variants() -> list[Variant]:
    """Returns the one way in which they are swapped."""
    return [Variant("gate, then up", "up, then gate", apply, locate=_locate)]


def _locate(places: Places, shape: tuple[int, int]) -> Places | None:
    if places.projection is not Projection.GATE_UP:
        return None
    return places._replace(rows_K=(places.rows_K + shape[0] // 2) % shape[0])
