"""What a reader wants first: MXFP4 implementation by implementation, each quantizer in a line, rule against rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from benchmarks.conformance.sides import CATALOGUE
from benchmarks.conformance.table import Agreement, Conformance, Pair
from quantaudit.core.scheme import ExponentScale
from quantaudit.numerics import get_scheme, scheme_names

YARDSTICK = "mxfp4-even"
FP32, BF16 = "float32", "bfloat16"
LIMITS = (
    "Ordinary weights only: zero, subnormal, saturating, infinite and NaN blocks are not among them, and a sample "
    "without a difference is no proof. `quantaudit certify` enumerates the whole input domain."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementations:
    """MXFP4 quantizers that are one function on these weights.

    Attributes:
        names: Of the quantizers; restated ones say so.
        scale: Scale rule.
        ties: Tie rule.
        pair: How they differ from the yardstick on bf16 weights; `None` where they are not installed.
    """

    names: tuple[str, ...]
    scale: str
    ties: str
    pair: Pair | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantizer of a library against its scheme, in both dtypes."""

    name: str
    scheme: str
    restated: bool
    note: str
    fp32: Pair | None
    bf16: Pair | None


def implementations(report: Conformance, absent: Iterable[tuple[str, str]] = ()) -> tuple[Implementations, ...]:
    """Groups MXFP4 quantizers by rule, in the order of the catalogue.

    Args:
        report: The report.
        absent: Names and schemes of quantizers whose library is not installed.
    """
    found = [(pair.b, _scheme_of(report, pair.b), pair) for pair in _from_yardstick(report)]
    rows = [*found, *((name, scheme, None) for name, scheme in absent)]
    order = {name: place for place, name in enumerate(scheme_names())}
    rows.sort(key=lambda row: (order[row[1]], _key(row[2])))
    return tuple(
        _one(scheme, list(group)) for (scheme, _), group in groupby(rows, key=lambda row: (row[1], _key(row[2])))
    )


def _key(pair: Pair | None) -> tuple[int, int]:
    return (-1, -1) if pair is None else (pair.differing.scales or 0, pair.differing.values)


def _one(scheme: str, group: list[tuple[str, str, Pair | None]]) -> Implementations:
    rule = get_scheme(scheme)
    assert isinstance(rule.scale, ExponentScale)
    names = tuple(name + (" (restated)" if pair is not None and pair.restated else "") for name, _, pair in group)
    return Implementations(names=names, scale=rule.scale.rounding.value, ties=rule.tie.value, pair=group[0][2])


def _from_yardstick(report: Conformance) -> list[Pair]:
    """Returns the bf16 pairs of the yardstick with a library; the catalogue stands first in every pair with one."""
    return [pair for pair in report.mxfp4 if pair.a == YARDSTICK and pair.dtype == BF16 and ":" in pair.b]


def _scheme_of(report: Conformance, name: str) -> str:
    return next(pair.scheme for pair in report.pairs if pair.a == name)


def count_functions(report: Conformance) -> int:
    """Counts the different functions among the libraries' MXFP4 quantizers on bf16 weights, by their values."""
    kept: list[str] = []
    pairs = [p for p in report.mxfp4 if p.dtype == BF16 and p.backend != CATALOGUE and ":" in p.b]
    equal = {frozenset((p.a, p.b)) for p in pairs if not p.differing.values}
    for name in dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b)):
        if not any(frozenset((name, other)) in equal for other in kept):
            kept.append(name)
    return len(kept)


def lines(report: Conformance) -> dict[str, tuple[Line, ...]]:
    """Returns the quantizers by backend, the two dtypes of each in one line."""
    by_dtype = {(pair.a, pair.dtype): pair for pair in report.pairs}
    found: dict[str, list[Line]] = {}
    for pair in {pair.a: pair for pair in report.pairs}.values():
        found.setdefault(f"{pair.backend} {pair.version}", []).append(
            Line(
                name=pair.a.partition(":")[2],
                scheme=pair.scheme,
                restated=pair.restated,
                note=pair.note,
                fp32=by_dtype.get((pair.a, FP32)),
                bf16=by_dtype.get((pair.a, BF16)),
            )
        )
    return {backend: tuple(rows) for backend, rows in found.items()}


def rule_matrix(report: Conformance) -> dict[tuple[str, str], float]:
    """Returns the share of values that differ on bf16 weights, by two MXFP4 rules of the catalogue."""
    inner = [p for p in report.mxfp4 if p.dtype == BF16 and ":" not in p.a + p.b]
    shares = {(p.a, p.b): p.shares.values for p in inner}
    return shares | {(b, a): share for (a, b), share in shares.items()}


def percent(share: float | None) -> str:
    """Returns a share in percent with three digits; a dash for none that is comparable."""
    if share is None:
        return "-"
    if share in (0, 1):
        return f"{100 * share:.0f}"
    if share < 5e-6:
        return "<0.001"
    return f"{100 * share:.3g}" if share < 0.99 else f"{100 * share:.2f}"


def cells(pair: Pair | None) -> tuple[str, str, str]:
    """Returns the shares of scales, codes and values in percent; dashes where the dtype is not taken."""
    if pair is None:
        return ("-", "-", "-")
    return (percent(pair.shares.scales), percent(pair.shares.codes), percent(pair.shares.values))


def summarize(report: Conformance) -> str:
    """Returns the report in some sentences."""
    identical = sum(pair.identical for pair in report.pairs)
    compared = {agreement: len(report.compared(agreement)) for agreement in Agreement}
    return (
        f"{len(_from_yardstick(report))} MXFP4 quantizers are {count_functions(report)} different functions on bf16 "
        f"weights. Of {len(report.pairs)} runs of a library's quantizer, {identical} equal their scheme in every "
        f"scale, code and value. Of {len(report.published)} published figures {compared[Agreement.AGREES]} agree, "
        f"{compared[Agreement.DIFFERS]} differ ({len(report.unsettled())} of them unexplained), "
        f"{compared[Agreement.NO_INTERVAL]} have no interval, and "
        f"{compared[Agreement.NOT_CHECKED]} were not checked."
    )
