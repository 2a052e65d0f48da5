"""Which scheme makes packed codes from plain numbers: searched once over the whole rule space, then checked.

A checkpoint is quantized by few rules, so a scheme that was found is tried first on every other matrix, in full, which
costs little more than quantizing it. A matrix that none gives is searched again; after some searches without an answer
nothing new is expected, and the nearest scheme stands.
"""

from __future__ import annotations

from torch import Tensor

from quantaudit.core.scheme import LinearScale, PerTensor, Scheme, TwoLevel
from quantaudit.identity.compare_matrix import Explanation
from quantaudit.identity.layouts.stored import PIECE, Packing, Part, StoredMatrix
from quantaudit.identity.search import is_related, search
from quantaudit.identity.search_sample import read_served
from quantaudit.identity.stored_weights import granularities_of
from quantaudit.numerics import fused_fake_quantize
from quantaudit.numerics.reference import INPUT_DTYPES

_FEW_ROWS = 16
_HOPELESS = 0.5  # of the values; what explains fewer in the first rows is not tried further
_MOST_FAILURES = 3


class SearchExplainer:
    """Names the scheme of packed matrices; callable as `Explain`."""

    def __init__(self) -> None:
        self._known: list[Scheme] = []  # the one that fitted last comes first
        self._num_failed = 0

    def __call__(self, plain: StoredMatrix, packed: StoredMatrix) -> Explanation | None:
        """Returns the scheme that gives most of the packed values, or `None` if none could be tried."""
        assert packed.packing is not None and plain.dtype is not None
        if plain.dtype not in INPUT_DTYPES:
            return None
        best: Explanation | None = None
        for scheme in [s for s in self._known if _is_alike(s, packed.packing, plain.shape)]:
            fraction = _fraction(plain, packed, scheme, least=0.0 if best is None else best.explains)
            if best is None or fraction > best.explains:
                best = Explanation(scheme.name, fraction, scheme)
            if fraction == 1:
                self._known.sort(key=lambda known: known != scheme)
                return best
        found = None if self._num_failed == _MOST_FAILURES else self._search(plain, packed)
        return found if best is None or (found is not None and found.explains > best.explains) else best

    def _search(self, plain: StoredMatrix, packed: StoredMatrix) -> Explanation | None:
        master, served = plain.parts[Part.NUMBERS], read_served(packed)
        found = search(master, served) if is_related(master, served) else None
        if found is None or not found.is_exact:
            self._num_failed += 1
        if found is None:
            return None
        self._known = [found.scheme, *(scheme for scheme in self._known if scheme != found.scheme)]
        return Explanation(found.scheme.name, 1.0 - found.misses.values / found.num_values, found.scheme)


def _fraction(plain: StoredMatrix, packed: StoredMatrix, scheme: Scheme, *, least: float) -> float:
    """Returns the fraction of equal values; of a few rows only, where that is below `least` already."""
    assert packed.packing is not None
    num_rows = plain.shape[0]
    if isinstance(scheme.granularity, PerTensor) or _is_two_level(scheme):
        return _num_equal(plain, packed, scheme, slice(0, num_rows)) / (num_rows * plain.shape[1])
    # Rows that share no scale are quantized apart, so that no more than a few are in memory.
    height = packed.packing.tile_rows
    step = max(1, PIECE // (plain.shape[1] * height)) * height
    few = min(num_rows, max(_FEW_ROWS, height))
    fraction = _num_equal(plain, packed, scheme, slice(0, few)) / (few * plain.shape[1])
    if fraction < 1 and (fraction <= least or fraction < _HOPELESS):
        return fraction
    pieces = (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))
    return sum(_num_equal(plain, packed, scheme, rows) for rows in pieces) / (num_rows * plain.shape[1])


def _num_equal(plain: StoredMatrix, packed: StoredMatrix, scheme: Scheme, rows: slice) -> int:
    assert plain.dtype is not None
    numbers: Tensor = plain.values(rows, plain.dtype).contiguous()
    return int((fused_fake_quantize(numbers, scheme) == packed.values(rows, plain.dtype)).sum())


def _is_alike(scheme: Scheme, packing: Packing, shape: tuple[int, int]) -> bool:
    return scheme.element == packing.element and scheme.granularity in granularities_of(packing, shape)


def _is_two_level(scheme: Scheme) -> bool:
    return isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)
