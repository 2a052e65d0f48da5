"""Faults of single experts, beside what explains the layer: of one among hundreds, or another one of each of two.

    1. What was counted on the layer may account for most of some matrices that nothing else explains.
    2. Of the experts that are left a few are looked at alone, first those in which the number of values that differ is
       furthest from what is usual. What explains such an expert is asked of a few rows of all others that are left, and
       counted on every value of those in which it shows.

A matrix is explained by what accounts for at least half of what differs there. Only a few experts are looked at, so a
fault that changes as many values as whatever else happened to the layer may stay unnamed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeAlias

from quantaudit.identity import identify_layer
from quantaudit.identity.compare_between import follow, has_equal_shapes, is_large
from quantaudit.identity.compare_confirm import confirm, may_explain, with_gained
from quantaudit.identity.compare_leads import Between, choose_experts
from quantaudit.identity.compare_record import Record
from quantaudit.identity.layouts.logical import LogicalTensor
from quantaudit.identity.mismatches.protocol import CONVINCING, FEW_VALUES, Finding, Projection

_MOST_ALONE = 4  # experts
_LISTED = 4  # experts that are named

_Matrix: TypeAlias = tuple[Projection, int]


def search_alone(layer: Between, counted: Sequence[Finding], *, was_asked_all: bool = True) -> list[Finding]:
    """Returns mismatches that account for most of single matrices, and not for the layer.

    Args:
        layer: Both sides.
        counted: What was counted on the layer, the most first; the first is the layer's if it is convincing.
        was_asked_all: Whether that is of all mismatches, so that experts drawn then need not be looked at again.
    """
    if not has_equal_shapes(layer) or len(layer.differing()) < 2 or any(one.num_left == 0 for one in counted):
        return []
    left = {matrix: count for matrix, count in layer.by_matrix().items() if count >= FEW_VALUES}
    found: list[Finding] = []
    for number, finding in enumerate(counted):
        mine = _explained(finding.gained, left)
        if mine and (number or not finding.is_convincing):
            found.append(_restricted(finding, mine, layer))
        left = _without(left, mine)
    seen = set(choose_experts(layer)) if was_asked_all and is_large(layer) else set()
    for expert in _unusual(left, seen):
        mine_alone = {matrix for matrix in left if matrix[1] == expert}
        best = next(iter(follow(layer.only(mine_alone)) if mine_alone else []), None)
        if best is None or not best.is_convincing:
            continue
        spread = best if best.predict is None else confirm(best, layer.only(may_explain(best, layer, left.keys())))
        mine = {} if spread is None else _explained(spread.gained, left)
        if mine:
            found.append(_restricted(best, mine, layer))
        left = _without(left, mine)
    return found


def _explained(gained: Mapping[_Matrix, int], left: Mapping[_Matrix, int]) -> dict[_Matrix, int]:
    """Returns what is gained in the matrices that are left, where that is at least half."""
    return {matrix: count for matrix, count in gained.items() if matrix in left and count >= CONVINCING * left[matrix]}


def _without(left: Mapping[_Matrix, int], explained: Collection[_Matrix]) -> dict[_Matrix, int]:
    return {matrix: count for matrix, count in left.items() if matrix not in explained}


def _restricted(finding: Finding, mine: Mapping[_Matrix, int], layer: Between) -> Finding:
    return with_gained(finding, mine, layer.by_matrix())


def _unusual(left: Mapping[_Matrix, int], seen: Collection[int]) -> list[int]:
    """Returns a few experts, first those in which an unusual number of values differs, of equal ones the largest."""
    counts: dict[int, int] = {}
    for (_, expert), count in left.items():
        counts[expert] = counts.get(expert, 0) + count
    if not counts:
        return []
    usual = median(counts.values())
    order = sorted(counts.keys() - seen, key=lambda expert: (-abs(counts[expert] - usual), -counts[expert], expert))
    return order[:_MOST_ALONE]


def name_experts(touched: Mapping[Projection, Collection[int]]) -> str:
    """Returns in words which experts are touched, given by projection."""
    experts = sorted({expert for experts in touched.values() for expert in experts})
    if len(experts) == 1:
        return f"in expert {experts[0]}"
    listed = ", ".join(map(str, experts[:_LISTED]))
    return f"in experts {listed}" if len(experts) <= _LISTED else f"in {len(experts)} experts: {listed} ..."


def choose_unexplained(
    tensors: Mapping[Projection, LogicalTensor], records: Mapping[Projection, Mapping[int, Record]]
) -> list[int] | None:
    """Chooses experts of a layer that is too large to be read whole: those that a scheme explains least.

    Args:
        tensors: One side of a master and its codes.
        records: What comparing them left.

    Returns:
        Numbers of experts, ascending; `None` where the first ones, which are read otherwise, hold all of these.
    """
    shapes = [next(iter(tensor.matrices.values())).shape for tensor in tensors.values()]
    most = min(max(1, identify_layer.MOST_VALUES // len(tensors) // max(1, shape[0] * shape[1])) for shape in shapes)
    shares: dict[int, float] = {}
    for found in records.values():
        for expert, record in found.items():
            if record.explains is not None and record.explains < 1:
                shares[expert] = min(record.explains, shares.get(expert, 1.0))
    chosen = sorted(sorted(shares, key=lambda expert: (shares[expert], expert))[:most])
    first = sorted(next(iter(tensors.values())).matrices)[:most]
    return None if set(chosen) <= set(first) else chosen


def take_experts(tensor: LogicalTensor, chosen: Sequence[int]) -> LogicalTensor:
    """Returns a tensor of some of its experts."""
    return replace(tensor, matrices={expert: tensor.matrices[expert] for expert in chosen})
