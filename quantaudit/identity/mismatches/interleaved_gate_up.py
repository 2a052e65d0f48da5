"""Rows of gate and up alternate on one side and follow each other on the other; nobody reorders them."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Places, Projection
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import gate_and_up, with_gate_and_up

ABOUT = About(
    name="interleaved-gate-up",
    kind=Kind.LAYOUT,
    field="layout.gate_up",
    sentence="Alternating rows of gate and up are read as one half after the other, or the other way round.",
)
_HALVES, _ALTERNATE = "gate, then up", "rows of gate and up alternate"


def apply(layer: Layer) -> Layer | None:
    """Lets the rows alternate: the upper half, read as gate, holds the first half of gate and of up in turns."""
    rows = gate_and_up(layer)
    return None if rows is None else with_gate_and_up(layer, interleave(rows))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's rows of gate and up in alternation, or taken apart as if they had alternated."""
    return best(ABOUT, train, serve, variants())


def variants() -> list[Variant]:
    """Returns both ways in which one side takes the rows for what they are not."""
    return [
        Variant(_HALVES, _ALTERNATE, apply, locate=partial(_locate, is_apart=False)),
        Variant(_ALTERNATE, _HALVES, _taken_apart, locate=partial(_locate, is_apart=True)),
    ]


def interleave(rows: Tensor) -> Tensor:
    """Returns [..., 2R, C] with the two halves in alternation: first row of gate, first row of up, second of gate."""
    return rows.reshape(*rows.shape[:-2], 2, -1, rows.shape[-1]).transpose(-3, -2).reshape(rows.shape)


def take_apart(rows: Tensor) -> Tensor:
    """Returns [..., 2R, C] with the even rows, then the odd ones (the inverse of `interleave`)."""
    return rows.reshape(*rows.shape[:-2], -1, 2, rows.shape[-1]).transpose(-3, -2).reshape(rows.shape)


def _taken_apart(layer: Layer) -> Layer | None:
    rows = gate_and_up(layer)
    return None if rows is None else with_gate_and_up(layer, take_apart(rows))


def _locate(places: Places, shape: tuple[int, int], *, is_apart: bool) -> Places | None:
    if places.projection is not Projection.GATE_UP:
        return None
    rows_K, half = places.rows_K, shape[0] // 2
    found_K = rows_K % half * 2 + rows_K // half if is_apart else rows_K // 2 + rows_K % 2 * half
    return places._replace(rows_K=found_K)
