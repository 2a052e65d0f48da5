"""What a reader wants first: family by family which quantizers are one function, and each quantizer in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.conformance.families import MXFP4, family_of, yardstick
from benchmarks.conformance.table import Agreement, Conformance, Pair
from quantaudit.core.scheme import ExponentScale
from quantaudit.numerics import get_scheme, scheme_names

FP32, BF16 = "float32", "bfloat16"
LIMITS = (
    "Ordinary weights only: zero, subnormal, saturating, infinite and NaN blocks are not among them, and a sample "
    "without a difference is no proof. `quantaudit certify` enumerates the whole input domain."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementations:
    """Quantizers of a family that are one function on bf16 weights: their scales and values are equal.

    Attributes:
        names: Of the quantizers.
        scheme: The first scheme of the catalogue that gives the same; empty if none does.
        pair: How they differ from the yardstick; `None` where they are not installed.
    """

    names: tuple[str, ...]
    scheme: str
    pair: Pair | None

    @property
    def scale(self) -> str:
        """Scale rule, if scales are powers of two."""
        rule = get_scheme(self.scheme).scale if self.scheme else None
        return rule.rounding.value if isinstance(rule, ExponentScale) else ""

    @property
    def ties(self) -> str:
        """Tie rule of the elements."""
        return get_scheme(self.scheme).tie.value if self.scheme else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantizer of a library against its scheme, in both dtypes."""

    name: str
    scheme: str
    restated: bool
    note: str
    fp32: Pair | None
    bf16: Pair | None


def implementations(
    report: Conformance, family: str, absent: Iterable[tuple[str, str]] = ()
) -> tuple[Implementations, ...]:
    """Groups the quantizers of a family that are one function, in the order of the catalogue.

    Args:
        report: The report.
        family: The family.
        absent: Names and schemes of quantizers whose library is not installed.
    """
    pairs = _pairs(report, family)
    schemes = [name for name in scheme_names() if family_of(get_scheme(name)) == family]
    standard = yardstick(family)
    found = []
    for names in _classes(report, family, lambda pair: not (pair.differing.values or pair.differing.scales)):
        equal = (s for s in schemes if not (pairs[s, names[0]].differing.values or pairs[s, names[0]].differing.scales))
        found.append(Implementations(names=names, scheme=next(equal, ""), pair=pairs[standard, names[0]]))
    for name, scheme in absent:
        if family_of(get_scheme(scheme)) == family:
            found.append(Implementations(names=(name,), scheme=scheme, pair=None))
    order = {name: place for place, name in enumerate(schemes)}
    return tuple(sorted(found, key=lambda row: order.get(row.scheme, len(order))))


def _pairs(report: Conformance, family: str) -> dict[tuple[str, str], Pair]:
    return {(pair.a, pair.b): pair for pair in report.mutual if pair.family == family and pair.dtype == BF16}


def _classes(report: Conformance, family: str, is_equal: Callable[[Pair], bool]) -> list[tuple[str, ...]]:
    """Returns quantizers in classes, each equal to the first of its class."""
    pairs = _pairs(report, family)
    kept: list[list[str]] = []
    for name in quantizers(report, family):
        own = next((names for names in kept if is_equal(pairs[names[0], name])), None)
        if own is None:
            kept.append([name])
        else:
            own.append(name)
    return [tuple(names) for names in kept]


def quantizers(report: Conformance, family: str) -> tuple[str, ...]:
    """Lists the quantizers of libraries, and restated ones, that were held against each other."""
    return tuple(dict.fromkeys(b for _, b in _pairs(report, family) if ":" in b))


def count_functions(report: Conformance, family: str = MXFP4) -> int:
    """Counts the different functions among the quantizers of a family on bf16 weights, by their values."""
    return len(_classes(report, family, lambda pair: not pair.differing.values))


def families(report: Conformance) -> tuple[str, ...]:
    """Lists MXFP4, and the families of which there is more than one quantizer."""
    named = dict.fromkeys([MXFP4, *(pair.family for pair in report.mutual)])
    return tuple(family for family in named if family == MXFP4 or len(quantizers(report, family)) > 1)


def is_restated(report: Conformance, name: str) -> bool:
    """Says whether a quantizer was re-typed from a description."""
    return any(pair.restated for pair in report.pairs if pair.a == name)


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
    inner = [p for p in report.mutual if p.family == MXFP4 and p.dtype == BF16 and ":" not in p.a + p.b]
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
        f"{len(quantizers(report, MXFP4))} implementations of MXFP4 are {count_functions(report)} different functions "
        f"on bf16 weights. Of {len(report.pairs)} runs of a quantizer, {identical} equal their scheme in every "
        f"scale, code and value. Of {len(report.published)} published figures {compared[Agreement.AGREES]} agree, "
        f"{compared[Agreement.DIFFERS]} differ ({len(report.unsettled())} of them unexplained), and "
        f"{compared[Agreement.NOT_CHECKED]} were not checked."
    )
