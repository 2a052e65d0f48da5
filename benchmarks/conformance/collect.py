"""Runs all sides on the same weights, dtype by dtype, and puts the report together."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from itertools import combinations

from torch import Tensor

from benchmarks.conformance.data import DTYPES, SEED, digest_weights, make_weights
from benchmarks.conformance.families import MXFP4, family_of, family_schemes
from benchmarks.conformance.figures import VERSIONS, published_figures
from benchmarks.conformance.measure import compare, reference_for
from benchmarks.conformance.observe import Draws, observe
from benchmarks.conformance.published import hold_against
from benchmarks.conformance.sides import Absent, Outcome, Side, catalogue_side, reference_of
from benchmarks.conformance.table import Comparison, Conformance, Pair, Unchecked
from quantaudit.numerics import get_scheme, scheme_names

_OTHERS = ("quantaudit", "numpy")
_DISTRIBUTIONS = {"modelopt": "nvidia-modelopt"}


def collect(sides: Sequence[Side], absent: Iterable[Absent], command: str, draws: Draws) -> Conformance:
    """Runs the sides on the weights in every dtype.

    Args:
        sides: Quantizers of libraries.
        absent: What could not be loaded.
        command: What makes the report again.
        draws: Shape and number of the draws; tables are of the first, published figures are held against all.
    """
    weights_RC = make_weights(draws.rows, draws.columns)
    pairs: list[Pair] = []
    mutual: list[Pair] = []
    published: list[Comparison] = []
    installed = {side.backend: side.version for side in sides}
    by_name = {side.name: side for side in (*map(catalogue_side, scheme_names()), *sides)}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        x = weights_RC.to(dtype)
        for family in dict.fromkeys(_family(side) for side in sides):
            members = [side for side in sides if _family(side) == family and dtype in side.dtypes]
            outcomes = {side.name: side.run(x) for side in members}
            pairs += _against_schemes(x, members, outcomes, name)
            mutual += _among(x, family, members, outcomes, name)
        figures = [figure for figure in published_figures() if figure.dtype == name]
        published += hold_against(figures, observe(figures, by_name, dtype, draws), installed)
    return Conformance(
        command=command,
        seed=SEED,
        rows=draws.rows,
        columns=draws.columns,
        data_digest=digest_weights(weights_RC),
        versions=installed_versions(),
        caveats=tuple(dict.fromkeys(side.caveat for side in sides if side.caveat)),
        pairs=_in_order(pairs, sides),
        mutual=tuple(mutual),
        published=tuple(published),
        unchecked=tuple(Unchecked(name=item.name, reason=item.reason) for item in absent),
    )


def _family(side: Side) -> str:
    return family_of(get_scheme(side.scheme))


def _in_order(pairs: Iterable[Pair], sides: Sequence[Side]) -> tuple[Pair, ...]:
    """Returns pairs backend by backend, as their sides are listed."""
    order = {side.name: place for place, side in enumerate(sides)}
    return tuple(sorted(pairs, key=lambda pair: order[pair.a]))


def _against_schemes(x: Tensor, members: list[Side], outcomes: dict[str, Outcome], dtype: str) -> Iterator[Pair]:
    for side in members:
        theirs = outcomes[side.name]
        yield compare(side, catalogue_side(side.scheme), theirs, reference_for(x, theirs), dtype)


def _among(x: Tensor, family: str, members: list[Side], outcomes: dict[str, Outcome], dtype: str) -> Iterator[Pair]:
    """Compares schemes with quantizers, quantizers with each other, and MXFP4 rules with each other.

    A scheme decodes to the dtype of what it is compared with. What trains and what is stored under the same name and
    scheme is one quantizer, held against the others once.
    """
    able = [side for side in _without_twins(members) if outcomes[side.name].codes is not None]
    decoded = dict.fromkeys([x.dtype, *(outcomes[side.name].values.dtype for side in able)])
    own = [catalogue_side(name) for name in family_schemes(family)]
    for a in own:
        results = {to: reference_of(x, get_scheme(a.name), to) for to in decoded}
        for b in able:
            yield compare(a, b, results[outcomes[b.name].values.dtype], outcomes[b.name], dtype)
    for a, b in combinations(able, 2):
        yield compare(a, b, outcomes[a.name], outcomes[b.name], dtype)
    if family == MXFP4:
        rules = {side.name: side.run(x) for side in own}
        yield from (compare(a, b, rules[a.name], rules[b.name], dtype) for a, b in combinations(own, 2))


def _without_twins(members: list[Side]) -> list[Side]:
    seen: dict[tuple[str, str], Side] = {}
    for side in members:
        library, _, quantizer = side.name.partition(":")
        seen.setdefault((library.removesuffix("-qat") + quantizer, side.scheme), side)
    return list(seen.values())


def installed_versions() -> dict[str, str]:
    """Returns the versions of what numbers depend on; libraries that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in (*_OTHERS, *VERSIONS):
        try:
            found[name] = metadata.version(_DISTRIBUTIONS.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    return found
