"""Which scheme of the catalogue makes packed codes from plain numbers: tried one by one, exactly.

The scheme that fitted last is tried first, since a checkpoint is quantized by one rule. A few rows rule out nearly all
of the others. What no named scheme explains is left to a search over the whole rule space.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from quantaudit.core.scheme import Granularity, LinearScale, PerBlock, PerChannel, PerGroup, PerTensor, Scheme, TwoLevel
from quantaudit.identity.compare_matrix import Explanation
from quantaudit.identity.layouts.stored import PIECE, Packing, StoredMatrix
from quantaudit.numerics import fused_fake_quantize, get_scheme, scheme_names
from quantaudit.numerics.reference import INPUT_DTYPES

_FEW_ROWS = 16
_HOPELESS = 0.5  # of the values; what explains fewer in the first rows is not tried further


class CatalogueExplainer:
    """Tries the bundled schemes of one element format and granularity; callable as `Explain`."""

    def __init__(self) -> None:
        self._last: str | None = None

    def __call__(self, plain: StoredMatrix, packed: StoredMatrix) -> Explanation | None:
        """Returns the scheme that gives most of the packed values, or `None` if none could be tried."""
        assert packed.packing is not None and plain.dtype is not None
        if plain.dtype not in INPUT_DTYPES:
            return None
        best: Explanation | None = None
        candidates = sorted(_candidates(packed.packing, plain.shape), key=lambda scheme: scheme.name != self._last)
        for scheme in candidates:
            fraction = _fraction(plain, packed, scheme, least=0.0 if best is None else best.explains)
            if best is None or fraction > best.explains:
                best = Explanation(scheme.name, fraction)
            if fraction == 1:
                self._last = scheme.name
                break
        return best


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


def _candidates(packing: Packing, shape: tuple[int, int]) -> Iterator[Scheme]:
    wanted = _granularities(packing, shape)
    for name in scheme_names():
        if "/" in name:  # a plug-in's scheme is not loaded unasked
            continue
        scheme = get_scheme(name)
        if scheme.element == packing.element and scheme.granularity in wanted:
            yield scheme


def _granularities(packing: Packing, shape: tuple[int, int]) -> list[Granularity]:
    tile = packing.tile_rows, packing.tile_cols
    found: list[Granularity] = []
    if tile[0] == 1:
        found.append(PerGroup(size=tile[1]))
    if tile == (1, shape[1]):
        found.append(PerChannel())
    if tile == shape:
        found.append(PerTensor())
    if tile[0] > 1:
        found.append(PerBlock(rows=tile[0], cols=tile[1]))
    return found


def _is_two_level(scheme: Scheme) -> bool:
    return isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)
