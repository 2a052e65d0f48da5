"""What the weights alone say: is everything quantized that should be, finite, and where do hi and lo differ?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from quantaudit.core.decision import Decision
from quantaudit.core.engine import WeightPair
from quantaudit.core.report import Discrepancy, ExpertMap
from quantaudit.observers.weights import first_discrepancy, rms_ratio, sqnr_db
from quantaudit.stats import decide_exact

MAX_RMS_RATIO = 4.0  # two binary orders: clipping and rounding of the coarsest grid stay well inside one
_MAX_DISCREPANCIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEvidence:
    """What the comparison of all tensors found.

    Attributes:
        violations: Sentences that break integrity; none if it holds.
        num_tensors: Tensors compared.
        num_changed: Tensors whose values differ.
        sqnr_db: (role, layer) -> dB per expert.
        rms_ratio: Module name -> root mean square of lo over that of hi, for stacks of experts.
        discrepancies: First differing coordinate of the first few tensors.
    """

    violations: tuple[str, ...]
    num_tensors: int
    num_changed: int
    sqnr_db: dict[tuple[str, int], list[float]]
    rms_ratio: dict[str, float]
    discrepancies: tuple[Discrepancy, ...]

    def misscaled(self) -> str | None:
        """Returns a sentence on the stack whose size moved most, if any moved by more than `MAX_RMS_RATIO`."""
        name = max(self.rms_ratio, key=lambda n: _octaves(self.rms_ratio[n]), default=None)
        if name is None or _octaves(self.rms_ratio[name]) <= math.log2(MAX_RMS_RATIO):
            return None
        return (
            f"{name} of lo is {self.rms_ratio[name]:.3g} times the size of hi's; no quantizer moves the size of a "
            f"tensor by more than {MAX_RMS_RATIO:g}, so its experts compute something else, whatever the probes say."
        )

    def decision(self) -> Decision:
        """Returns the integrity decision, exact."""
        decision = decide_exact(is_equal=not self.violations)
        reason = (
            self.violations[0] if self.violations else "Every tensor is held as declared, and every value is finite."
        )
        return decision.model_copy(update={"reason": reason})


def compare_weights(pairs: Iterable[WeightPair]) -> WeightEvidence:
    """Compares tensor by tensor; memory stays at one pair."""
    violations: list[str] = []
    discrepancies: list[Discrepancy] = []
    sqnr: dict[tuple[str, int], list[float]] = {}
    ratios: dict[str, float] = {}
    num_tensors = num_changed = 0
    for pair in pairs:
        num_tensors += 1
        violations.extend(check_pair(pair))
        found = first_discrepancy(pair.name, pair.hi, pair.lo)
        num_changed += found is not None
        if found is not None and len(discrepancies) < _MAX_DISCREPANCIES:
            discrepancies.append(found)
        if pair.is_expert:
            sqnr[pair.name.rpartition(".")[2], pair.layer] = sqnr_db(pair.hi, pair.lo)
            ratios[pair.name] = rms_ratio(pair.hi, pair.lo)
    return WeightEvidence(
        violations=tuple(violations),
        num_tensors=num_tensors,
        num_changed=num_changed,
        sqnr_db=sqnr,
        rms_ratio=ratios,
        discrepancies=tuple(discrepancies),
    )


def _octaves(ratio: float) -> float:
    """Returns how many factors of two a ratio is away from 1; infinite for 0 and for what is not a number."""
    return abs(math.log2(ratio)) if 0 < ratio < math.inf else math.inf


def check_pair(pair: WeightPair) -> list[str]:
    """Returns what is wrong with one tensor of lo."""
    found = []
    if pair.wanted != pair.held:
        wanted, held = pair.wanted or "its own precision", pair.held or "its own precision"
        found.append(f"{pair.name} should be held in {wanted} and is held in {held}.")
    if not bool(pair.lo.isfinite().all()):
        found.append(f"{pair.name} of lo holds values that are not finite.")
    return found


def sqnr_maps(evidence: WeightEvidence) -> tuple[ExpertMap, ...]:
    """Returns a layer x expert table of SQNR for each expert matrix."""
    titles = {"w1": "gate (w1)", "w3": "up (w3)", "w2": "down (w2)"}
    maps = []
    for role, title in titles.items():
        rows = {layer: values for (r, layer), values in sorted(evidence.sqnr_db.items()) if r == role}
        if rows:
            maps.append(
                ExpertMap(
                    name=f"sqnr-{role}",
                    title=f"Weight SQNR, {title}",
                    unit="dB",
                    larger_is_better=True,
                    layers=tuple(rows),
                    values=tuple(tuple(v) for v in rows.values()),
                )
            )
    return tuple(maps)
