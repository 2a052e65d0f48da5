"""What a reader wants first: each rule in a line, its worst cells, where it declines, and what it can admit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from statistics import median

from benchmarks.calibration.layouts import Sizes
from benchmarks.calibration.table import Calibration, Cell, Rate, RuleName, worst_admission

NUM_WORST = 6
REFUSES = 0.5  # a cell counts as refused where more than half of its replicates are

MEANINGS = {
    RuleName.MEAN: "The mean difference over probes against a margin of half a standard deviation.",
    RuleName.FLIPS: "0/1 differences with the design effect of the margin behind them; margins of 2 to 20 points.",
    RuleName.CONTRAST: "The difference of two group means in shared or disjoint clusters.",
    RuleName.CONTRACT: "Five or twelve clauses of both kinds: all must pass to admit, Holm's procedure to reject.",
    RuleName.SEQUENTIAL_MEAN: "Bounded differences, read after every cluster and stopped at the first decision.",
    RuleName.SEQUENTIAL_FLIPS: "0/1 differences, read after every cluster and stopped at the first decision.",
}
REFUSAL = (
    "Means, flips and contrasts decline (UNDECIDED) where their clusters weigh less than seven equal ones, whether "
    "they are fewer or a few hold most of the probes: the tail of the damage may then lie in a cluster that was not "
    "drawn. The clause says so. Sequential rules need no such limit: their bounds hold for any clusters."
)
BEYOND = (
    "No rule sees damage that is rarer than its sample: where it strikes fewer than three clusters in n, a sample of n "
    "clusters may well hold none. The laws here have a skewness of up to 6.2 and a correlation of up to one half."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDigest:
    """One rule over all its cells.

    Attributes:
        worst: Cells that admit most at the margin, worst first.
        false_reject: Largest share of false rejections, on or inside the margin.
        coverage: Smallest share of intervals that hold the truth; `None` for contracts.
        refused: Layouts in which it mostly declines, each in words.
        num_refused: Cells of those.
    """

    rule: RuleName
    num_cells: int
    worst: tuple[Cell, ...]
    false_reject: Rate
    coverage: Rate | None
    num_refused: int
    refused: tuple[str, ...]
    num_too_liberal: int
    num_rejecting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow:
    """Median power over laws and directions, where nothing is refused outright, by correlation."""

    num_probes: int
    num_clusters: int
    sizes: Sizes
    power: tuple[float | None, ...]


def digest_rules(table: Calibration) -> tuple[RuleDigest, ...]:
    """Digests every rule that has cells."""
    return tuple(_digest(rule, table.of(rule)) for rule in RuleName if table.of(rule))


def _digest(rule: RuleName, cells: tuple[Cell, ...]) -> RuleDigest:
    at_margin = [cell for cell in cells if cell.false_admit is not None]
    at_margin.sort(key=lambda cell: -(cell.false_admit.value if cell.false_admit else 0.0))
    rejections = [r for cell in cells for r in (cell.false_reject, cell.false_reject_inside) if r is not None]
    coverages = [cell.coverage for cell in cells if cell.coverage is not None]
    refused = [cell for cell in cells if cell.refused.value > REFUSES]
    places = {f"{c.num_clusters} {c.sizes.value} clusters" for c in refused}
    return RuleDigest(
        rule=rule,
        num_cells=len(cells),
        worst=tuple(at_margin[:NUM_WORST]),
        false_reject=max(rejections, key=lambda r: r.value),
        coverage=min(coverages, key=lambda r: r.value, default=None),
        num_refused=len(refused),
        refused=tuple(sorted(places, key=lambda place: (int(place.split()[0]), place))),
        num_too_liberal=sum(cell.is_too_liberal() for cell in cells),
        num_rejecting=sum(cell.rejects_too_often() for cell in cells),
    )


def power_rows(cells: tuple[Cell, ...], correlations: tuple[float, ...]) -> tuple[PowerRow, ...]:
    """Returns the median power at no damage of every layout, a column a correlation."""

    def place(cell: Cell) -> tuple[int, int, str]:
        return cell.num_probes, cell.num_clusters, cell.sizes.value

    rows = []
    for (num_probes, num_clusters, sizes), group in groupby(sorted(cells, key=place), key=place):
        known: dict[float, list[float]] = {}
        for cell in group:
            if cell.power is not None:
                known.setdefault(cell.icc, []).append(cell.power.value)
        power = tuple(median(known[icc]) if icc in known else None for icc in correlations)
        row = PowerRow(num_probes=num_probes, num_clusters=num_clusters, sizes=Sizes(sizes), power=power)
        rows.append(row)
    return tuple(rows)


def percent(share: float | None) -> str:
    """Returns a share in percent with one digit."""
    return "" if share is None else f"{100 * share:.1f}"


def with_error(rate: Rate | None) -> str:
    """Returns a rate in percent with its standard error."""
    return "" if rate is None else f"{percent(rate.value)} +- {percent(rate.standard_error)}"


def worst_of(table: Calibration) -> Cell:
    """Returns the cell that admits most at its margin."""
    worst = worst_admission(table.cells)
    assert worst is not None, "some cell lies on its margin"
    return worst
