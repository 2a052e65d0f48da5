"""Experts in the place of others, or under the scales of others: guessed by sketches, confirmed on every value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import torch

from quantaudit.identity.compare_confirm import with_gained
from quantaudit.identity.compare_leads import Between
from quantaudit.identity.compare_record import Record, Sketch
from quantaudit.identity.compare_values import count_values
from quantaudit.identity.layouts.stored import Part, StoredMatrix
from quantaudit.identity.mismatches.permuted_experts import ABOUT, IN_PLACE, WITH_CODES, describe_order, describe_scales
from quantaudit.identity.mismatches.protocol import CONVINCING, Finding, Projection

_MOST_CANDIDATES = 3  # experts of one sketch that are tried in one place


class _Way(NamedTuple):
    """One way of moving.

    Attributes:
        train: What the known side does.
        describe: Puts into words what the other one does.
        part: What of a sketch moves.
        num_left: Returns how many values still differ in a place (own, candidate, served); `None` if it is another.
    """

    train: str
    describe: Callable[[Mapping[int, int]], str]
    part: Callable[[Sketch], bytes]
    num_left: Callable[[StoredMatrix, StoredMatrix, StoredMatrix], int | None]


def find_moved(layer: Between) -> Finding | None:
    """Returns what moved experts account for, or moved scales if that is more; `None` if it is less than half."""
    ways = (
        _Way(IN_PLACE, describe_order, attrgetter("values"), _count_expert),
        _Way(WITH_CODES, describe_scales, attrgetter("scales"), _count_scales),
    )
    known = [finding for way in ways if (finding := _find(layer, way)) is not None]
    return max(known, key=lambda finding: finding.explains, default=None)


def _find(layer: Between, way: _Way) -> Finding | None:
    candidates = {name: dict(_guess(records, way.part)) for name, records in layer.records.items()}
    possible = sum(layer.records[name][place].num_values for name, found in candidates.items() for place in found)
    if possible < CONVINCING * layer.num_differing() or not possible:
        return None
    order: dict[int, int] = {}
    counted: dict[tuple[Projection, int], int] = {}
    for name, found in candidates.items():
        for place, others in found.items():
            matched = _match(layer, name, place, others[:_MOST_CANDIDATES], way)
            if matched is None:
                continue
            order[place], num_left = matched
            gained = layer.records[name][place].num_values - num_left
            if gained > 0:
                counted[name, place] = gained
    if not counted:
        return None
    moved = Finding(
        about=ABOUT,
        train=way.train,
        serve=way.describe(order),
        explains=0.0,
        num_differing=0,
        num_left=0,
        experts={},
    )
    return with_gained(moved, counted, layer.by_matrix())


def _guess(records: Mapping[int, Record], part: Callable[[Sketch], bytes]) -> Iterator[tuple[int, list[int]]]:
    """Yields places in which another expert may stand, and which, the first of equal ones first."""
    known: dict[bytes, list[int]] = {}
    for expert, record in records.items():
        known.setdefault(part(record.a), []).append(expert)
    for place, record in records.items():
        others = [expert for expert in known.get(part(record.b), []) if expert != place]
        if record.num_values and part(record.b) and others:
            yield place, others


def _match(layer: Between, name: Projection, place: int, others: list[int], way: _Way) -> tuple[int, int] | None:
    """Returns which expert stands in a place, and the values that still differ; `None` if it is none of these."""
    matrices = layer.known[name].matrices
    own, served = matrices[place].read(), layer.other[name].matrices[place].read()
    for other in others:
        num_left = way.num_left(own, matrices[other].read(), served)
        if num_left is not None:
            return other, num_left
    return None


def _count_expert(own: StoredMatrix, candidate: StoredMatrix, served: StoredMatrix) -> int | None:
    is_it = candidate.shape == served.shape and count_values(candidate, served).values == 0
    return 0 if is_it else None


def _count_scales(own: StoredMatrix, candidate: StoredMatrix, served: StoredMatrix) -> int | None:
    if served.packing is None or own.packing is None or own.packing != candidate.packing:
        return None
    if torch.equal(own.scales(), served.scales()) or not torch.equal(candidate.scales(), served.scales()):
        return None
    moved = replace(own, parts={**own.parts, Part.SCALES: candidate.parts[Part.SCALES]})
    return count_values(moved, served).values
