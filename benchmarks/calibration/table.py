"""What is reported: one row a cell, each rate with its Monte-Carlo standard error, and what may not be exceeded."""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import Field

from benchmarks.calibration.layouts import Sizes
from quantaudit.core.contract import Direction
from quantaudit.core.serial import Frozen
from quantaudit.stats.clustered import ALPHA

STANDARD_ERRORS = 3


class RuleName(StrEnum):
    """A rule in use."""

    MEAN = "cluster mean"
    FLIPS = "flips"
    CONTRAST = "contrast"
    CONTRACT = "whole contract"
    SEQUENTIAL_MEAN = "sequential mean"
    SEQUENTIAL_FLIPS = "sequential flips"


class Rate(Frozen):
    """A share of replicates.

    Attributes:
        value: The share.
        standard_error: Monte-Carlo standard error of the share.
    """

    value: float = Field(ge=0, le=1)
    standard_error: float = Field(ge=0)


class Cell(Frozen):
    """One rule in one situation.

    Attributes:
        rule: Which rule.
        law: What differences look like; for a contract how many clauses there are and how many at the margin.
        num_probes: Probes (of each group, for a contrast).
        num_clusters: Clusters they lie in.
        sizes: Whether clusters are equal.
        icc: Correlation within clusters.
        direction: Which differences count; `None` for contracts, whose clauses have both.
        margin: Margin of the clause.
        replicates: Simulated samples behind every rate.
        false_admit: ADMIT where the truth is on the margin; `None` where nothing is.
        false_reject: REJECT where the truth is on the margin, which no clause is beyond.
        false_reject_inside: REJECT where there is no damage at all.
        coverage: Share of 90 % intervals that hold the truth; `None` for contracts.
        power: ADMIT where there is no damage at all.
        inconclusive: Neither, where there is no damage at all.
        refused: Replicates in which the rule declines for the weight of its clusters, as it says.
    """

    rule: RuleName
    law: str
    num_probes: int
    num_clusters: int
    sizes: Sizes
    icc: float
    direction: Direction | None
    margin: float
    replicates: int
    false_admit: Rate | None
    false_reject: Rate
    false_reject_inside: Rate | None
    coverage: Rate | None
    power: Rate | None
    inconclusive: Rate | None
    refused: Rate

    def limit(self) -> float:
        """Returns alpha and three Monte-Carlo standard errors of a rate that is alpha."""
        return ALPHA + STANDARD_ERRORS * math.sqrt(ALPHA * (1 - ALPHA) / self.replicates)

    def is_too_liberal(self) -> bool:
        """Tells whether more is admitted at the margin than the limit allows."""
        return self.false_admit is not None and self.false_admit.value > self.limit()

    def rejects_too_often(self) -> bool:
        """Tells whether more is rejected on or inside the margin than the limit allows."""
        rates = (self.false_reject, self.false_reject_inside)
        return any(rate is not None and rate.value > self.limit() for rate in rates)

    def situation(self) -> str:
        """Returns the cell in a few words."""
        how = f", {self.direction.value}" if self.direction else ""
        return (
            f"{self.law}, {self.num_probes:,} probes in {self.num_clusters} {self.sizes.value} clusters, "
            f"ICC {self.icc:g}{how}"
        )


class Calibration(Frozen):
    """The whole table.

    Attributes:
        command: What makes it again.
        seed: Root of every cell's generator.
        replicates: Samples asked for; rules that are called one by one get half as many.
        versions: Of everything that numbers may depend on.
        alpha: What every rule promises.
        cells: In the order of simulation.
    """

    schema_version: int = 1
    command: str
    seed: int
    replicates: int
    versions: dict[str, str]
    alpha: float
    cells: tuple[Cell, ...]

    def of(self, rule: RuleName) -> tuple[Cell, ...]:
        """Returns the cells of a rule."""
        return tuple(cell for cell in self.cells if cell.rule is rule)

    def too_liberal(self) -> tuple[Cell, ...]:
        """Returns the cells that break the promise."""
        return tuple(cell for cell in self.cells if cell.is_too_liberal())


def rate(share: float, replicates: int) -> Rate:
    """Returns a share with its standard error."""
    return Rate(value=share, standard_error=round(math.sqrt(share * (1 - share) / replicates), 6))


def worst_admission(cells: tuple[Cell, ...]) -> Cell | None:
    """Returns the cell that admits most at the margin, `None` where no cell has anything there."""
    known = [cell for cell in cells if cell.false_admit is not None]
    return max(known, key=lambda cell: cell.false_admit.value if cell.false_admit else 0.0, default=None)


def summarize(table: Calibration) -> str:
    """Returns the result in two or three sentences."""
    worst, broken = worst_admission(table.cells), table.too_liberal()
    assert worst is not None and worst.false_admit is not None, "some cell lies on its margin"
    found = worst.false_admit
    rejecting = [cell for cell in table.cells if cell.rejects_too_often()]
    more = f" {len(rejecting):,} reject more often than that on or inside the margin." if rejecting else ""
    verdict = "No cell is above" if not broken else f"{len(broken):,} cells are above"
    return (
        f"{len(table.cells):,} cells, worst false ADMIT {100 * found.value:.1f} % +- {100 * found.standard_error:.1f} "
        f"({worst.rule.value}: {worst.situation()}). {verdict} alpha and three Monte-Carlo standard errors.{more}"
    )
