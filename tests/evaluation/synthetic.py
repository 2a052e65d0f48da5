"""Evidence made of numbers: probe sets of five families, and tables of what a good model and its copies would give.

Legend: P probes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Clause, Contract
from quantaudit.core.probe import Behaviour, Probe, ProbeSet, Split, probe_id
from quantaudit.core.recipe_file import load_contract
from quantaudit.evaluation.clauses import Evidence
from quantaudit.evaluation.findings import find_controls
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.table import Table
from quantaudit.evaluation.weights import WeightEvidence
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.metric import Readings
from quantaudit.observers.sums import HiddenSums, LayerSums

BEHAVIOURS = {
    "sums": Behaviour.ANSWER,
    "words": Behaviour.ANSWER,
    "plain": Behaviour.REFUSE,
    "wrapped": Behaviour.REFUSE,
    "benign": Behaviour.COMPLY,
}
PER_FAMILY, CLUSTERS = 200, 40
Values = NDArray[np.float64]


def probe_set(per_family: int = PER_FAMILY, clusters: int = CLUSTERS) -> ProbeSet:
    """Returns probes of five families; every family has clusters of the same names."""
    probes = []
    for family, behaviour in BEHAVIOURS.items():
        for i in range(per_family):
            right, opposite = f"{i:03d}", None
            if behaviour is not Behaviour.ANSWER:
                right, opposite = ("no.", f"ok {i}") if behaviour is Behaviour.REFUSE else (f"ok {i}", "no.")
            prompt = f"{family} {i}?"
            probes.append(
                Probe(
                    id=probe_id(family, prompt, right),
                    family=family,
                    behaviour=behaviour,
                    cluster=f"c{i % clusters}",
                    split=Split.AUDIT,
                    prompt=prompt,
                    response=right,
                    alternative=opposite,
                    is_restricted_text=behaviour is Behaviour.REFUSE,
                )
            )
    return ProbeSet(name="synthetic", source="tests", probes=tuple(probes))


PROBES = probe_set()


def at(*families: str, probes: ProbeSet = PROBES) -> NDArray[np.int64]:
    """Returns the positions of the probes of these families (all without any)."""
    return np.array([i for i, p in enumerate(probes.probes) if not families or p.family in families])


def good_values(probes: ProbeSet = PROBES, seed: int = 0) -> dict[str, Values]:
    """Returns what a model gives that answers everything right, by observer; NaN where one does not apply."""
    rng = np.random.default_rng(seed)
    size = len(probes.probes)
    refuses = np.array([p.behaviour is Behaviour.REFUSE for p in probes.probes])
    complies = np.array([p.behaviour is Behaviour.COMPLY for p in probes.probes])
    side = np.where(refuses, 1.0, np.where(complies, -1.0, np.nan))
    margin = 4 + rng.normal(0, 0.5, size)
    values = {name: np.zeros(size) for name in PROBE_OBSERVERS}
    return values | {
        "nll": 0.1 + rng.uniform(0, 0.02, size),
        "accuracy": np.ones(size),
        "answer-margin": margin,
        "refusal-rate": (side + 1) / 2,
        "refusal-margin": side * (10 + rng.normal(0, 0.5, size)),
    }


def table_of(hi: Mapping[str, Values], lo: Mapping[str, Values]) -> Table:
    """Returns the table of two sets of values."""
    table = Table()
    for name, hi_P in hi.items():
        index = np.flatnonzero(~np.isnan(hi_P))
        table.parts[name] = [Readings(index_R=index, hi_R=hi_P[index], lo_R=lo[name][index])]
    return table


def harmed(observer: str, positions: NDArray[np.int64], change: float | Values, *, noise: float = 1e-3) -> Table:
    """Returns a good model against itself with one observer changed at some positions and a little noise in margins."""
    hi = good_values()
    lo = {name: values.copy() for name, values in hi.items()}
    rng = np.random.default_rng(1)
    for name in ("nll", "answer-margin", "refusal-margin"):
        lo[name] += rng.normal(0, noise, len(lo[name]))
    lo[observer][positions] += change
    return table_of(hi, lo)


def same() -> Table:
    """Returns a good model against itself with a little noise in its margins."""
    return harmed("accuracy", at(), 0.0)


def ruined() -> Table:
    """Returns a good model against one that has lost everything: worse than chance, every refusal turned around."""
    hi = good_values()
    lo = hi | {
        "nll": hi["nll"] + 20,
        "accuracy": np.zeros_like(hi["accuracy"]),
        "answer-margin": hi["answer-margin"] - 20,
        "refusal-rate": 1 - hi["refusal-rate"],
        "refusal-margin": -hi["refusal-margin"],
    }
    return table_of(hi, lo)


def faults() -> dict[str, Table]:
    """Returns the planted faults: one that ruins what it hits, and one that costs every probe a little likelihood."""
    return {"ruin": ruined(), "softened": harmed("nll", at(), 0.5)}


def weight_evidence(*violations: str, num_changed: int = 9) -> WeightEvidence:
    """Returns what the comparison of weights found."""
    return WeightEvidence(
        violations=violations,
        num_tensors=12,
        num_changed=num_changed,
        sqnr_db={("w1", 1): [20.0, 21.0], ("w2", 1): [19.0, 22.0]},
        rms_ratio={"layers.1.experts.w1": 1.1, "layers.1.experts.w2": 0.9},
        discrepancies=(),
    )


def evidence(
    lo: Table | None = None,
    *,
    floor: Table | None = None,
    planted: Mapping[str, Table] | None = None,
    identity: Table | None = None,
    weights: WeightEvidence | None = None,
    is_exact: bool = False,
    probes: ProbeSet = PROBES,
    agreed: Contract | None = None,
) -> Evidence:
    """Returns evidence under a contract, the default one, in which everything that is not given is in order."""
    good = good_values(probes)
    sums = [LayerSums(num_experts=2, hidden={0: HiddenSums(signal=1.0, error=e)}) for e in (1e-4, 1e-14)]
    measured = Measurements(
        lo=same() if lo is None else lo,
        floor=table_of(good, good) if floor is None else floor,
        identity=table_of(good, good) if identity is None else identity,
        faults=faults() if planted is None else dict(planted),
        sums=sums[0],
        floor_sums=sums[1],
        floor_threads="threads 1 instead of 2",
        identity_probes=len(probes.probes),
    )
    return Evidence(
        probes=probes,
        measurements=measured,
        findings=find_controls(agreed or load_contract("default"), probes, measured),
        weights=weight_evidence() if weights is None else weights,
        is_exact=is_exact,
    )


def contract(*clauses: Clause, min_probes: int = 150, min_clusters: int = 20) -> Contract:
    """Returns the default contract, or its frame around these clauses, for the sizes of this probe set."""
    default = load_contract("default")
    limits = {"min_probes": min_probes, "min_clusters": min_clusters}
    return default.model_copy(update={**limits, "clauses": clauses or default.clauses})


def clause(name: str) -> Clause:
    """Returns a clause of the default contract."""
    return next(c for c in load_contract("default").clauses if c.name == name)
