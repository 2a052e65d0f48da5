"""Which mismatches may turn one quantized side into the other, by a bounded number of values of a layer.

    1. Of a few experts that differ, a few rows, most of them rows that differ: every mismatch that makes rows from the
       same rows is tried on them, and on a square of blocks what quantizes blocks of rows and columns.
    2. What moves values between rows is asked where the values of a few places come from.
    3. Scales of the transposed grid are decoded with the codes of these rows.

So the work is the same for a layer of any size. What leads is only an estimate, to be counted on every value.

Shape suffixes: K rows or places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quantaudit.identity.compare_crop import as_layer, crop, decode_rows, tile_height
from quantaudit.identity.compare_record import Record, common_dtype
from quantaudit.identity.layouts.logical import LogicalTensor
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix
from quantaudit.identity.mismatches import (
    interleaved_gate_up,
    permuted_experts,
    quantized_twice,
    swapped_gate_up,
    transposed_scales,
    transposed_weights,
)
from quantaudit.identity.mismatches.protocol import About, Finding, Mismatch, Places, Projection
from quantaudit.identity.mismatches.registry import MISMATCHES
from quantaudit.identity.mismatches.scoring import Variant, count_differing, num_differing


class _Moving(Mismatch, Protocol):
    """A mismatch that does nothing but move values."""

    def variants(self) -> list[Variant]:
        """Returns the ways in which it can happen."""
        ...


_SAMPLED = 1 << 15  # values of a layer
_MOST_EXPERTS, _LEAST_ROWS, _MOST_ROWS = 4, 4, 16
_PLACED_ROWS, _PLACED_COLS = 8, 32
_FEW_PLACES = 32  # that differ: half of fewer is explained by chance
_SQUARE = 128  # rows and columns: whole blocks of every bundled scheme
_BLOCK_COLS = 1024
_SEED = 20261130
_MOVING: tuple[_Moving, ...] = (swapped_gate_up, interleaved_gate_up, transposed_weights)
_ACROSS_ROWS: tuple[Mismatch, ...] = (*_MOVING, permuted_experts, transposed_scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A layer on two quantized sides.

    Attributes:
        known: The side whose codes are known, if one's are: by projection.
        other: What it is turned into.
        records: What comparing them left, by projection and expert; sketch `a` is of the known side.
    """

    known: Mapping[Projection, LogicalTensor]
    other: Mapping[Projection, LogicalTensor]
    records: Mapping[Projection, Mapping[int, Record]]

    def differing(self) -> list[int]:
        """Returns the experts of which any projection differs in value, ascending."""
        found = {e for records in self.records.values() for e, record in records.items() if record.num_values}
        return sorted(found)

    def num_differing(self) -> int:
        """Returns the values of the layer that differ."""
        return sum(self.by_matrix().values())

    def by_matrix(self) -> dict[tuple[Projection, int], int]:
        """Returns the values that differ, by projection and expert."""
        return {(name, e): record.num_values for name, found in self.records.items() for e, record in found.items()}

    def only(self, matrices: Collection[tuple[Projection, int]]) -> Between:
        """Returns the layer as if nothing but these matrices differed."""
        records = {
            name: {e: one if (name, e) in matrices else one._replace(num_values=0, rows=()) for e, one in found.items()}
            for name, found in self.records.items()
        }
        return replace(self, records=records)

    def within(self, names: Collection[Projection]) -> Between:
        """Returns the layer of some projections alone."""
        known, other = ({name: one for name, one in side.items() if name in names} for side in (self.known, self.other))
        return Between(known=known, other=other, records={name: self.records[name] for name in known})


class Lead(NamedTuple):
    """A mismatch, and the share of the difference that it seems to account for: in all, and in one expert at most."""

    finding: Finding
    estimate: float
    somewhere: float


class Both(NamedTuple):
    """One matrix on both sides, and what comparing them left."""

    known: StoredMatrix
    other: StoredMatrix
    record: Record

    @property
    def sides(self) -> tuple[StoredMatrix, StoredMatrix]:
        """Returns the known and the other side."""
        return self.known, self.other

    def cut(self, rows_K: Tensor, num_cols: int | None = None) -> Both:
        """Returns some rows of both sides, as `crop`."""
        return Both(crop(self.known, rows_K, num_cols), crop(self.other, rows_K, num_cols), self.record)


class _Scores:
    """Estimates of variants that need more than rows, weighed by the values that differ."""

    def __init__(self) -> None:
        self._explained: dict[tuple[str, str], float] = {}
        self._largest: dict[tuple[str, str], float] = {}
        self._variants: dict[tuple[str, str], tuple[About, Variant]] = {}

    def add(self, about: About, variant: Variant, before: int, after: int, num_values: int) -> None:
        """Adds what a variant leaves of `before` differing places of a matrix in which `num_values` values differ."""
        key = about.name, variant.serve
        self._variants[key] = about, variant
        share = max(0.0, (before - after) / before) if before else 0.0
        self._explained[key] = self._explained.get(key, 0.0) + share * num_values
        self._largest[key] = max(self._largest.get(key, 0.0), share if before >= _FEW_PLACES else 0.0)

    def leads(self, num_values: int) -> Iterator[Lead]:
        """Yields every variant that explains anything; `num_values` differ in all."""
        for key, explained in self._explained.items():
            about, variant = self._variants[key]
            if explained:
                share = explained / num_values
                yield Lead(_finding(about, variant, share), share, self._largest[key])


def find_leads(layer: Between, only: Collection[str] = ()) -> list[Lead]:
    """Returns what may account for the difference, the largest share first, except for experts that were moved.

    Args:
        layer: Both sides; some values differ.
        only: Names of mismatches that are asked; all if empty.
    """
    wanted = [m.ABOUT.name for m in MISMATCHES if not only or m.ABOUT.name in only]
    scores, cropped, total = _Scores(), list[dict[Projection, Both]](), 0
    squares: list[Lead] = []
    experts = choose_experts(layer)
    width = sum(next(iter(tensor.matrices.values())).shape[1] for tensor in layer.known.values())
    num_rows = min(max(_SAMPLED // (len(experts) * width), _LEAST_ROWS), _MOST_ROWS)
    for expert in experts:
        both = read_expert(layer, expert)
        rows = _choose_rows(both, num_rows)
        for name, pair in both.items():
            total += pair.record.num_values
            if transposed_scales.ABOUT.name in wanted:
                _score_scales(scores, pair, rows[name])
        _score_moves(scores, both, rows, [m for m in _MOVING if m.ABOUT.name in wanted])
        if expert == experts[0] and quantized_twice.ABOUT.name in wanted:
            squares = list(_search(_cut_square(both), (quantized_twice,), is_stack=False))
        cropped.append(_cut(both, rows))
    is_stack = all(tensor.is_stack for tensor in layer.known.values())
    searched = tuple(m for m in MISMATCHES if m not in _ACROSS_ROWS and m.ABOUT.name in wanted)
    leads = [*_search(cropped, searched, is_stack=is_stack), *squares, *scores.leads(max(total, 1))]
    return sorted(leads, key=lambda lead: (-lead.estimate, wanted.index(lead.finding.about.name)))


def choose_experts(layer: Between) -> list[int]:
    """Returns the experts that are looked at: a few of those that differ, spread over them."""
    differing = layer.differing()
    width = sum(next(iter(tensor.matrices.values())).shape[1] for tensor in layer.known.values())
    most = min(max(_SAMPLED // (_LEAST_ROWS * width), 1), _MOST_EXPERTS, len(differing))
    return [differing[i] for i in torch.linspace(0, len(differing) - 1, most).long().tolist()]


def read_expert(layer: Between, expert: int) -> dict[Projection, Both]:
    """Reads the matrices of one expert on both sides."""
    return {
        name: Both(
            tensor.matrices[expert].read(), layer.other[name].matrices[expert].read(), layer.records[name][expert]
        )
        for name, tensor in layer.known.items()
    }


def _choose_rows(both: Mapping[Projection, Both], num_rows: int) -> dict[Projection, Tensor]:
    """Returns as many rows of every projection, mostly rows that differ; the same of those of one height."""
    hints: dict[int, list[int]] = {}
    for pair in both.values():
        hints.setdefault(pair.known.shape[0], []).extend(pair.record.rows)
    chosen = {}
    for name, pair in both.items():
        height, tile = pair.known.shape[0], max(tile_height(pair.known), tile_height(pair.other))
        differing = hints[height] or [0]
        if tile > 1:
            start = differing[0] // tile * tile
            chosen[name] = torch.arange(start, min(start + tile, height))
            continue
        half = torch.linspace(0, len(differing) - 1, num_rows - num_rows // 4).long().tolist()
        spread = torch.linspace(0, height - 1, num_rows // 4).long().tolist()
        chosen[name] = torch.tensor([*(differing[i] for i in half), *spread])
        if num_rows // 4:
            chosen[name][-1] = _row_of_largest_scale(pair.known)
    return chosen


def _row_of_largest_scale(matrix: StoredMatrix) -> int:
    """Returns a row with the largest scale: mostly that of the absmax, which a second level is measured by."""
    if matrix.packing is None:
        return 0
    scales_TT = matrix.scales()
    return int(scales_TT.argmax()) // scales_TT.shape[1] if matrix.packing.tile_rows == 1 else 0


def _cut(both: Mapping[Projection, Both], rows: Mapping[Projection, Tensor]) -> dict[Projection, Both]:
    cut = {}
    for name, pair in both.items():
        packing = pair.known.packing or pair.other.packing
        is_wide = len(rows[name]) > _MOST_ROWS and packing is not None and _BLOCK_COLS % packing.tile_cols == 0
        num_cols = _BLOCK_COLS if is_wide and pair.known.shape[1] > _BLOCK_COLS else None
        cut[name] = pair.cut(rows[name], num_cols)
    return cut


def _cut_square(both: Mapping[Projection, Both]) -> list[dict[Projection, Both]]:
    """Returns a square of whole blocks of every projection; empty where a matrix has none."""
    cut = {}
    for name, pair in both.items():
        widths = [side.packing.tile_cols for side in pair.sides if side.packing is not None]
        fits = all(_SQUARE % width == 0 or width >= pair.known.shape[1] for width in widths)
        if min(pair.known.shape) < _SQUARE or not fits:
            return []
        start = min(
            (pair.record.rows or (0,))[0] // _SQUARE * _SQUARE, pair.known.shape[0] // _SQUARE * _SQUARE - _SQUARE
        )
        rows = torch.arange(start, start + _SQUARE)
        cut[name] = pair.cut(rows, _SQUARE)
    return [cut]


def _search(
    cropped: list[dict[Projection, Both]], mismatches: tuple[Mismatch, ...], *, is_stack: bool
) -> Iterator[Lead]:
    if not cropped:
        return
    names = cropped[0].keys()
    train, serve = (
        as_layer({name: [both[name].sides[side] for both in cropped] for name in names}, is_stack=is_stack)
        for side in (0, 1)
    )
    if num_differing(train, serve) == 0:
        return
    for mismatch in mismatches:
        found = mismatch.recognise(train, serve)
        if found is not None:
            yield Lead(found, found.explains, found.largest_share)


def _score_scales(scores: _Scores, pair: Both, rows_K: Tensor) -> None:
    """Scores the scales of the transposed grid under the codes of some rows."""
    packing = pair.known.packing
    if packing is None or packing.scale is ScaleKind.E4M3 or min(pair.known.parts[Part.SCALES].shape) < 2:
        return
    scales = transposed_weights.viewed_transposed(pair.known.parts[Part.SCALES])
    moved = replace(pair.known, parts={**pair.known.parts, Part.SCALES: scales})
    served = decode_rows(pair.other, rows_K)
    before, after = (int(count_differing(decode_rows(side, rows_K), served).sum()) for side in (pair.known, moved))
    for variant in transposed_scales.variants():
        scores.add(transposed_scales.ABOUT, variant, before, after, pair.record.num_values)


def _score_moves(
    scores: _Scores, both: Mapping[Projection, Both], rows: Mapping[Projection, Tensor], mismatches: list[_Moving]
) -> None:
    """Scores what moves values, at a few places of every projection."""
    for block in _blocks(both):
        target = _choose_places(block, both, rows)
        parts = _parts(block, both)
        shape = sum(both[name].known.shape[0] for name in parts), both[parts[0]].known.shape[1]
        served, trained = (_values_at(target, [both[name].sides[side] for name in parts]) for side in (1, 0))
        before = _num_other(trained, served, both[parts[0]])
        weight = sum(both[name].record.num_values for name in parts)
        for mismatch in mismatches:
            for variant in mismatch.variants():
                source = None if variant.locate is None else variant.locate(target, shape)
                if source is None:
                    continue
                moved = _values_at(source, [both[name].known for name in parts])
                scores.add(mismatch.ABOUT, variant, before, _num_other(moved, served, both[parts[0]]), weight)


def _blocks(both: Mapping[Projection, Both]) -> Iterator[Projection]:
    yield from both
    gate, up = both.get(Projection.GATE), both.get(Projection.UP)
    if gate is not None and up is not None and gate.known.shape == up.known.shape:
        yield Projection.GATE_UP


def _parts(block: Projection, both: Mapping[Projection, Both]) -> list[Projection]:
    return [block] if block in both else [Projection.GATE, Projection.UP]


def _choose_places(block: Projection, both: Mapping[Projection, Both], rows: Mapping[Projection, Tensor]) -> Places:
    start, chosen = 0, []
    for name in _parts(block, both):
        chosen.append(rows[name][:_PLACED_ROWS] + start)
        start += both[name].known.shape[0]
    num_cols = both[_parts(block, both)[0]].known.shape[1]
    cols_K = torch.randint(0, num_cols, (_PLACED_COLS,), generator=torch.Generator().manual_seed(_SEED))
    rows_K = torch.cat(chosen)
    return Places(block, rows_K.repeat_interleave(len(cols_K)), cols_K.repeat(len(rows_K)))


def _values_at(places: Places, matrices: list[StoredMatrix]) -> Tensor:
    """Returns the values of places, [K]; of two matrices, rows of the second follow those of the first."""
    found = torch.empty(len(places.rows_K), dtype=torch.float32)
    start = 0
    for matrix in matrices:
        is_here_K = (places.rows_K >= start) & (places.rows_K < start + matrix.shape[0])
        if is_here_K.any():
            rows, at_K = (places.rows_K[is_here_K] - start).unique(return_inverse=True)
            found[is_here_K] = decode_rows(matrix, rows)[at_K, places.cols_K[is_here_K]].float()
        start += matrix.shape[0]
    return found


def _num_other(a_K: Tensor, b_K: Tensor, pair: Both) -> int:
    dtype = common_dtype(pair.known, pair.other)
    return int((a_K.to(dtype) != b_K.to(dtype)).sum())


def _finding(about: About, variant: Variant, share: float) -> Finding:
    return Finding(
        about=about,
        train=variant.train,
        serve=variant.serve,
        explains=share,
        num_differing=0,
        num_left=0,
        experts={},
        predict=variant.predict,
        rewrite=variant.rewrite,
    )
