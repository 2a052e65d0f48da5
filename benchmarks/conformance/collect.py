"""Runs all sides on the same weights, dtype by dtype, and puts the report together."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from itertools import combinations

from torch import Tensor

from benchmarks.conformance.data import DTYPES, SEED, digest_weights
from benchmarks.conformance.figures import VERSIONS, published_figures
from benchmarks.conformance.measure import compare, reference_for
from benchmarks.conformance.published import hold_against
from benchmarks.conformance.sides import Absent, Outcome, Side, catalogue_side, mxfp4_schemes
from benchmarks.conformance.table import Comparison, Conformance, Pair, Unchecked
from quantaudit.numerics import scheme_names

QAT = "torchao-qat"  # the arithmetic of torchao's quantizers, which it is held against the same schemes as
_OTHERS = ("quantaudit", "numpy")
_DISTRIBUTIONS = {"modelopt": "nvidia-modelopt"}


def collect(weights_RC: Tensor, sides: Sequence[Side], absent: Iterable[Absent], command: str) -> Conformance:
    """Runs the sides on the weights in every dtype.

    Args:
        weights_RC: [R, C] fp32, both multiples of 128.
        sides: Quantizers of libraries.
        absent: What could not be loaded.
        command: What makes the report again.
    """
    pairs: list[Pair] = []
    mxfp4: list[Pair] = []
    published: list[Comparison] = []
    unchecked = [Unchecked(name=item.name, reason=item.reason) for item in absent]
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        round_ = _Round(weights_RC.to(dtype), name)
        for side in (side for side in sides if dtype in side.dtypes):
            pairs.append(round_.against_catalogue(side))
        mxfp4 += round_.among_mxfp4([side for side in sides if side.is_mxfp4 and side.backend != QAT])
        published += round_.against_published({side.backend: side.version for side in sides})
    return Conformance(
        command=command,
        seed=SEED,
        rows=weights_RC.shape[0],
        columns=weights_RC.shape[1],
        data_digest=digest_weights(weights_RC),
        versions=installed_versions(),
        pairs=tuple(pairs),
        mxfp4=tuple(mxfp4),
        published=tuple(published),
        unchecked=tuple(unchecked),
    )


class _Round:
    """One dtype: the weights, and what the sides made of them."""

    def __init__(self, x: Tensor, dtype: str) -> None:
        self._x = x
        self._dtype = dtype
        self._figures = [figure for figure in published_figures() if figure.dtype == dtype]
        self._wanted = {name for figure in self._figures for name in (figure.a, figure.b)}
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    def against_catalogue(self, side: Side) -> Pair:
        theirs = side.run(self._x)
        if side.name in self._wanted or side.is_mxfp4:
            self._outcomes[side.name, self._dtype] = theirs
        ours = reference_for(self._x, theirs)
        return compare(side, catalogue_side(side.scheme), theirs, ours, self._dtype)

    def among_mxfp4(self, libraries: Iterable[Side]) -> list[Pair]:
        sides = [*(catalogue_side(name) for name in mxfp4_schemes()), *libraries]
        outcomes = [(side, self._outcome(side)) for side in sides]
        able = [(side, outcome) for side, outcome in outcomes if outcome.codes is not None]
        return [compare(a, b, left, right, self._dtype) for (a, left), (b, right) in combinations(able, 2)]

    def against_published(self, installed: Mapping[str, str]) -> tuple[Comparison, ...]:
        for name in self._wanted.intersection(scheme_names()):
            self._outcome(catalogue_side(name))
        return hold_against(self._figures, self._outcomes, self._dtype, installed)

    def _outcome(self, side: Side) -> Outcome:
        key = (side.name, self._dtype)
        if key not in self._outcomes:
            self._outcomes[key] = side.run(self._x)
        return self._outcomes[key]


def installed_versions() -> dict[str, str]:
    """Returns the versions of what numbers depend on; libraries that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in (*_OTHERS, *VERSIONS):
        try:
            found[name] = metadata.version(_DISTRIBUTIONS.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    return found
