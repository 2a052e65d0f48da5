"""What a mismatch accounts for, counted on every value of a layer: one expert at a time, by pieces of rows.

Matrices that do not differ are not read: nothing can be gained there. A fault that only moves codes or scales inside a
matrix is done to it as it is stored, and what is left is counted as between any two matrices. Else projections of one
height are predicted together, since a fault may take the rows of one for those of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch

from quantaudit.identity.compare_crop import as_layer, crop, decode_rows, tile_height
from quantaudit.identity.compare_leads import Between, Both, read_expert
from quantaudit.identity.compare_values import count_values
from quantaudit.identity.layouts.stored import StoredMatrix
from quantaudit.identity.mismatches.protocol import Finding, Layer, Projection
from quantaudit.identity.mismatches.sampling import SAMPLE_ROWS
from quantaudit.identity.mismatches.scoring import count_differing

_PIECE = 1 << 18  # values
_MOST_LEFT = 0.75  # of what differs in a few rows, where half is left in all


def confirm(finding: Finding, layer: Between) -> Finding | None:
    """Returns a finding with what it accounts for in all; `None` if that is nothing."""
    gained: dict[tuple[Projection, int], int] = {}
    is_stack = all(tensor.is_stack for tensor in layer.known.values())
    for expert in layer.differing():
        both = read_expert(layer, expert)
        for names in _by_height(both):
            if not any(both[name].record.num_values for name in names):
                continue
            part = {name: both[name] for name in names}
            for name, count in _count_gained(finding, part, is_stack=is_stack).items():
                if count > 0:
                    gained[name, expert] = count
    return with_gained(finding, gained, layer.by_matrix()) if gained else None


def may_explain(
    finding: Finding, layer: Between, matrices: Collection[tuple[Projection, int]]
) -> set[tuple[Projection, int]]:
    """Returns the matrices of which a finding accounts for anything like half, by a few rows where these can tell."""
    found = set()
    for expert in sorted({expert for _, expert in matrices}):
        for name, pair in read_expert(layer, expert).items():
            if (name, expert) in matrices and _gains_in_rows(finding, name, pair):
                found.add((name, expert))
    return found


def _gains_in_rows(finding: Finding, name: Projection, pair: Both) -> bool:
    rows_K = torch.tensor(pair.record.rows, dtype=torch.int64)
    moved = None if finding.rewrite is None else finding.rewrite(pair.known)
    if moved is not None:
        predicted = decode_rows(moved, rows_K)
    else:
        is_whole = tile_height(pair.known) > 1 or tile_height(pair.other) > 1
        if is_whole or not finding.is_by_rows or finding.predict is None:
            return True
        made = finding.predict(as_layer({name: [crop(pair.known, rows_K)]}, is_stack=False))
        if made is None:
            return False
        predicted = made[name].values
    served = decode_rows(pair.other, rows_K)
    before, after = (int(count_differing(x, served).sum()) for x in (decode_rows(pair.known, rows_K), predicted))
    return after <= _MOST_LEFT * before


def within(finding: Finding, names: Collection[Projection]) -> Finding | None:
    """Returns what a finding accounts for in some projections of a layer; `None` if that is nothing."""
    gained, differing = (
        {matrix: count for matrix, count in counts.items() if matrix[0] in names}
        for counts in (finding.gained, finding.differing)
    )
    return with_gained(finding, gained, differing) if gained else None


def with_gained(
    finding: Finding, gained: Mapping[tuple[Projection, int], int], differing: Mapping[tuple[Projection, int], int]
) -> Finding:
    """Returns a finding that accounts for these values, by projection and expert, of all that differ."""
    num_differing = sum(differing.values())
    experts: dict[Projection, tuple[int, ...]] = {}
    for name, expert in gained:
        experts[name] = (*experts.get(name, ()), expert)
    explained = sum(gained.values())
    return replace(
        finding,
        explains=explained / num_differing,
        num_differing=num_differing,
        num_left=num_differing - explained,
        experts=experts,
        gained=gained,
        differing=differing,
    )


def _by_height(both: Mapping[Projection, Both]) -> list[list[Projection]]:
    found: dict[int, list[Projection]] = {}
    for name, pair in both.items():
        found.setdefault(pair.known.shape[0], []).append(name)
    return list(found.values())


def _count_gained(finding: Finding, both: Mapping[Projection, Both], *, is_stack: bool) -> Counter[Projection]:
    """Returns how many values fewer differ from the prediction than from the known side, by projection."""
    gained: Counter[Projection] = Counter()
    rewritten = {name: finding.rewrite(pair.known) for name, pair in both.items()} if finding.rewrite else {}
    moved = {name: matrix for name, matrix in rewritten.items() if matrix is not None}
    if len(moved) == len(both):
        return Counter({name: _count_moved(both[name], matrix) for name, matrix in moved.items()})
    assert finding.predict is not None
    for train, serve in _pieces(finding, both, is_stack=is_stack):
        predicted = finding.predict(train)
        if predicted is None:
            continue
        for name, served in serve.items():
            before, after = (count_differing(side[name].values, served.values) for side in (train, predicted))
            gained[name] += int(before.sum()) - int(after.sum())
    return gained


def _count_moved(pair: Both, moved: StoredMatrix) -> int:
    return pair.record.num_values - count_values(moved, pair.other).values if pair.record.num_values else 0


def _pieces(finding: Finding, both: Mapping[Projection, Both], *, is_stack: bool) -> Iterator[tuple[Layer, Layer]]:
    height, width = next(iter(both.values())).known.shape
    step = max(1, _PIECE // (width * SAMPLE_ROWS)) * SAMPLE_ROWS if finding.is_by_rows else height
    for start in range(0, height, step):
        rows = torch.arange(start, min(start + step, height))
        train, serve = (
            as_layer({name: [crop(pair.sides[side], rows)] for name, pair in both.items()}, is_stack=is_stack)
            for side in (0, 1)
        )
        yield train, serve
