"""What a probe set can decide under a contract, told before anything is run.

A gate that cannot admit even a deployment without any damage makes every audit INCONCLUSIVE, however long it runs. So
for every gate and slice:

- 0/1 observers: n without a single flip bound the loss by 1 - alpha^(1/n); n must be large enough for that to lie
  inside the margin. With flips at an assumed rate, as many each way, Tango's statistic gives the loss that is told
  from none with power .8.
- other observers: the same loss is (t_{1-alpha} + t_.8) sd / sqrt(n), t_.9 for two-sided gates, in units of a standard
  deviation nobody knows yet; the largest one that lets the margin be decided is told as well.
- an earlier report, if given, supplies the flips and spreads in place of assumptions.

Legend: C clusters of a slice.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Clause, Contract, Kind, Stage
from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.core.probe import Behaviour, ProbeSet
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import Frozen
from quantaudit.evaluation.reading import CONTRAST, SOURCES
from quantaudit.evaluation.slices import Slice, clusters_at, positions_of, slices
from quantaudit.observers.metric import METRICS
from quantaudit.stats import MIN_CLUSTERS, POWER, exact_zero_flip_bound, minimum_detectable_effect
from quantaudit.stats.clustered import satterthwaite
from quantaudit.stats.skewness import MIN_DEGREES
from quantaudit.stats.statistic import has_weight

ASSUMED_FLIPS = (0.02, 0.05)
_EXACT = frozenset({"integrity", "degeneracy"})
_LEAST_CLUSTERS = math.floor(MIN_DEGREES) + 1


class Detectable(Frozen):
    """The smallest damage that is told from none with power .8, if a harmless lo differs as assumed.

    Attributes:
        assumed: Share of answers that flip for 0/1 observers, else the standard deviation of the differences.
        unit: Unit of `assumed`: "share", the observer's, or "sd" where the deviation itself is the unit.
        is_observed: Whether that comes from an earlier report.
        value: The damage, in the observer's unit; in deviations where `unit` is "sd".
    """

    assumed: float
    unit: str
    is_observed: bool
    value: float


class GateReach(Frozen):
    """What the probes can decide about one gate on one slice.

    Attributes:
        name: Name of the slice: `task[sorting]`.
        stage: Its place in the order of gates.
        unit: Unit of the margin.
        margin: The margin, `None` for gates without one.
        num_probes: Probes of the slice.
        num_clusters: Clusters of the slice.
        is_rate: Whether the observer is 0 or 1.
        num_without_flip: Fewest independent probes that admit without a flip; `None` for other observers.
        largest_sd: Largest standard deviation of the differences with which the margin can be decided with power .8;
            `None` for 0/1 observers.
        detectable: Damage told from none, by assumption.
        obstacle: Why it cannot be decided; `None` if it can.
    """

    name: str
    stage: Stage
    unit: str
    margin: float | None
    num_probes: int
    num_clusters: int
    is_rate: bool = False
    num_without_flip: int | None = None
    largest_sd: float | None = None
    detectable: tuple[Detectable, ...] = ()
    obstacle: str | None = None


class ContractCheck(Frozen):
    """What a probe set can decide under a contract.

    Attributes:
        contract: Name of the contract.
        contract_digest: Its digest.
        probes: Name of the probe set.
        probes_digest: Its digest, after the contract has chosen from it.
        num_probes: How many are run.
        earlier: Digest of the report that the spreads were taken from.
        power: Chance to tell the detectable damage from none.
        gates: Every gate on every slice.
    """

    schema_version: int = 1
    contract: str
    contract_digest: str
    probes: str
    probes_digest: str
    num_probes: int
    earlier: str | None
    power: float = POWER
    gates: tuple[GateReach, ...]

    @property
    def undecidable(self) -> tuple[GateReach, ...]:
        """Returns the gates that cannot be decided."""
        return tuple(gate for gate in self.gates if gate.obstacle is not None)


def check_reach(contract: Contract, probes: ProbeSet, earlier: AuditReport | None = None) -> ContractCheck:
    """Tells which gates the probes can decide.

    Args:
        contract: The contract.
        probes: What would be run.
        earlier: A report whose flips and spreads stand in for assumptions; it may be of another deployment.
    """
    known = {} if earlier is None else {c.name: c.estimate for c in earlier.clauses}
    gates = [clause for clause in contract.clauses if clause.kind is Kind.GATE]
    return ContractCheck(
        contract=contract.name,
        contract_digest=contract.digest(),
        probes=probes.name,
        probes_digest=probes.digest(),
        num_probes=len(probes.probes),
        earlier=None if earlier is None else earlier.report_digest(),
        gates=tuple(reach for clause in gates for reach in _reach_of(clause, contract, probes, known)),
    )


def _reach_of(
    clause: Clause, contract: Contract, probes: ProbeSet, known: dict[str, Estimate | None]
) -> list[GateReach]:
    if clause.observer in _EXACT:
        return [_without_margin(clause, probes)]
    metric = METRICS.get(SOURCES.get(clause.observer, clause.observer))
    parts = slices(clause, probes)
    missing = _what_is_missing(clause, probes, is_known=metric is not None, has_probes=bool(parts))
    if missing is not None or metric is None or clause.margin is None:
        unit = "" if metric is None else metric.unit
        return [_blank(clause, clause.name, unit).model_copy(update={"obstacle": missing})]
    if metric.is_rate:
        return [_rate_reach(clause, part, contract, probes, known.get(part.name)) for part in parts]
    unit = "share" if clause.observer != CONTRAST and clause.observer in SOURCES else metric.unit
    return [_mean_reach(clause, part, contract, probes, known.get(part.name), unit) for part in parts]


def _what_is_missing(clause: Clause, probes: ProbeSet, *, is_known: bool, has_probes: bool) -> str | None:
    if not is_known:
        return f"no observer {clause.observer!r} gives a number a probe"
    if clause.margin is None:
        return "it has no margin"
    if not has_probes:
        wanted = " or ".join(b.value for b in clause.behaviours) or "any behaviour"
        return f"no probe of {probes.name} has the behaviour {wanted}"
    if clause.observer == CONTRAST and not all(len(group) for group in _contrasted(probes)):
        return f"{probes.name} has no restricted or no benign requests to contrast"
    return None


def _without_margin(clause: Clause, probes: ProbeSet) -> GateReach:
    position_S = np.arange(len(probes.probes))
    sizes_C = _sizes(probes, position_S)
    few = len(sizes_C) < MIN_CLUSTERS and clause.observer != "integrity"
    return GateReach(
        name=clause.name,
        stage=clause.stage,
        unit="nats/token" if clause.observer == "degeneracy" else "tensors",
        margin=None,
        num_probes=len(position_S),
        num_clusters=len(sizes_C),
        obstacle=_few_clusters(len(sizes_C), MIN_CLUSTERS) if few else None,
    )


def _blank(clause: Clause, name: str, unit: str) -> GateReach:
    return GateReach(name=name, stage=clause.stage, unit=unit, margin=clause.margin, num_probes=0, num_clusters=0)


def _rate_reach(clause: Clause, part: Slice, contract: Contract, probes: ProbeSet, seen: Estimate | None) -> GateReach:
    assert clause.margin is not None
    sizes_C = _sizes(probes, part.position_P)
    num = int(sizes_C.sum())
    least = _num_without_flip(clause.margin, clause.alpha)
    rows = [_flips(clause, rate, sizes_C, design_effect=1.0, is_observed=False) for rate in ASSUMED_FLIPS]
    if seen is not None and seen.discordant_rate is not None:
        effect = max(1.0, seen.design_effect)
        rows.append(_flips(clause, seen.discordant_rate, sizes_C, design_effect=effect, is_observed=True))
    obstacle = _too_little(sizes_C, contract)
    if obstacle is None and num < least:
        bound = exact_zero_flip_bound(num, alpha=clause.alpha)
        obstacle = f"{num:,} probes without a flip bound the loss by {bound:.2g} only; {least:,} are needed"
    return GateReach(
        name=part.name,
        stage=clause.stage,
        unit="share",
        margin=clause.margin,
        num_probes=num,
        num_clusters=len(sizes_C),
        is_rate=True,
        num_without_flip=least,
        detectable=tuple(rows),
        obstacle=obstacle or _too_wide(rows, clause.margin),
    )


def _mean_reach(
    clause: Clause, part: Slice, contract: Contract, probes: ProbeSet, seen: Estimate | None, unit: str
) -> GateReach:
    assert clause.margin is not None
    sizes_C = _sizes(probes, part.position_P)
    num, scale = int(sizes_C.sum()), _error_of_one_sd(clause, part, probes)
    one = _detect(clause, scale, sizes_C)
    rows = [Detectable(assumed=1.0, unit="sd", is_observed=False, value=one)]
    if seen is not None and math.isfinite(seen.standard_error):
        # errors shrink with the root of the number of probes as long as clusters grow with it
        error = seen.standard_error * math.sqrt(seen.num_probes / num)
        value = _detect(clause, error, sizes_C)
        rows.append(Detectable(assumed=error / scale, unit=unit, is_observed=True, value=value))
    obstacle = _too_little(sizes_C, contract)
    return GateReach(
        name=part.name,
        stage=clause.stage,
        unit=unit,
        margin=clause.margin,
        num_probes=num,
        num_clusters=len(sizes_C),
        largest_sd=clause.margin / one if one > 0 else None,
        detectable=tuple(rows),
        obstacle=obstacle or _too_wide(rows, clause.margin),
    )


def _too_little(sizes_C: NDArray[np.int64], contract: Contract) -> str | None:
    num_probes, num_clusters = int(sizes_C.sum()), len(sizes_C)
    if num_probes < contract.min_probes:
        return f"{num_probes:,} probes, and the contract asks for at least {contract.min_probes:,}"
    least = max(_LEAST_CLUSTERS, contract.min_clusters)
    if num_clusters < least:
        return _few_clusters(num_clusters, least)
    if not has_weight(satterthwaite(sizes_C, 0.0), num_clusters):
        return f"a few of {num_clusters:,} clusters hold most of the probes; {_LEAST_CLUSTERS} equal ones are needed"
    return None


def _few_clusters(num: int, least: int) -> str:
    return f"{num:,} clusters, and at least {least:,} are needed"


def _too_wide(rows: list[Detectable], margin: float) -> str | None:
    """Returns the obstacle that an earlier report shows: with its spread the margin is not told from none."""
    for row in rows:
        if row.is_observed and row.value > margin:
            return f"with the earlier report's spread no less than {row.value:.2g} is told from none"
    return None


def _num_without_flip(margin: float, alpha: float) -> int:
    """Returns the fewest independent probes that admit without a flip: (1 - margin)^n at most alpha, exactly."""
    return math.ceil(math.log(alpha) / math.log1p(-margin))


def _flips(
    clause: Clause, rate: float, sizes_C: NDArray[np.int64], *, design_effect: float, is_observed: bool
) -> Detectable:
    num = int(sizes_C.sum())
    error = math.sqrt(rate * design_effect / num)
    value = _detect(clause, error, sizes_C, discordant_rate=rate, design_effect=design_effect)
    return Detectable(assumed=rate, unit="share", is_observed=is_observed, value=value)


def _detect(
    clause: Clause,
    standard_error: float,
    sizes_C: NDArray[np.int64],
    *,
    discordant_rate: float | None = None,
    design_effect: float = 1.0,
) -> float:
    """Returns the damage told from none by a harmless lo's estimate with this error; infinite with too few clusters."""
    num_clusters = len(sizes_C)
    if num_clusters < MIN_CLUSTERS:
        return math.inf
    has_spread = discordant_rate is None or discordant_rate > 0
    estimate = Estimate(
        value=0.0,
        standard_error=standard_error,
        degrees_of_freedom=float(satterthwaite(sizes_C, 0.0)) if has_spread else math.inf,
        interval=Interval(lower=-math.inf, upper=math.inf, level=1 - 2 * clause.alpha),
        num_probes=int(sizes_C.sum()),
        num_clusters=num_clusters,
        design_effect=design_effect,
        intraclass_correlation=0.0,
        method=Method.CR2 if discordant_rate is None else Method.SCORE,
        discordant_rate=discordant_rate,
    )
    return minimum_detectable_effect(estimate, direction=clause.direction, alpha=clause.alpha)


def _error_of_one_sd(clause: Clause, part: Slice, probes: ProbeSet) -> float:
    """Returns the standard error of the estimate if differences had a standard deviation of 1."""
    if clause.observer != CONTRAST:
        return 1 / math.sqrt(len(part.position_P))
    first, second = (len(group) for group in _contrasted(probes))
    return math.sqrt(1 / first + 1 / second)


def _contrasted(probes: ProbeSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return positions_of(probes, Behaviour.REFUSE), positions_of(probes, Behaviour.COMPLY)


def _sizes(probes: ProbeSet, position_S: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(list(Counter(clusters_at(probes, position_S)).values()), dtype=np.int64)
