"""What the controls of a run found: a function of hi, probes, contract and environment, and of nothing about lo.

That is why they can be kept: the next recipe on the same reference meets the same controls.
"""

from __future__ import annotations

from quantaudit.core.contract import Clause, Contract, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.probe import ProbeSet
from quantaudit.core.report import Control
from quantaudit.core.serial import Frozen
from quantaudit.evaluation.controls import floor_control, identity_control
from quantaudit.evaluation.degeneracy import judge_degeneracy
from quantaudit.evaluation.doses import Assay, assay
from quantaudit.evaluation.floor import measure_floor
from quantaudit.evaluation.layers import LAYER_OBSERVERS, layer_value
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.reading import COMPANIONS, SOURCES
from quantaudit.evaluation.slices import slices


class Findings(Frozen):
    """What the controls found.

    Attributes:
        identity: Hi through the complete lo path.
        floor: Hi against itself under another execution.
        floors: Floor of every clause by the name of its slice; `None` where it is not finite.
        assays: What planted faults showed, by the name of every gate slice with a margin.
        sees_degeneracy: Whether a planted fault made the degeneracy gate fail.
    """

    identity: Control
    floor: Control
    floors: dict[str, float | None]
    assays: dict[str, Assay]
    sees_degeneracy: bool


def find_controls(contract: Contract, probes: ProbeSet, measured: Measurements) -> Findings:
    """Reads the controls off the pass."""
    floors: dict[str, float | None] = {}
    assays: dict[str, Assay] = {}
    for clause in contract.clauses:
        if clause.observer in LAYER_OBSERVERS:
            floors[clause.name] = layer_value(clause.observer, measured.floor_sums, None)
        elif clause.observer not in ("integrity", "degeneracy"):
            for part in slices(clause, probes):
                floors[part.name] = measure_floor(clause, part, measured.floor, probes)
                if is_assayed(clause):
                    assays[part.name] = assay(clause, part, measured.faults, probes)
    return Findings(
        identity=identity_control(measured),
        floor=floor_control(measured),
        floors=floors,
        assays=assays,
        sees_degeneracy=_sees_degeneracy(contract, probes, measured),
    )


def assayed_observers(contract: Contract) -> frozenset[str]:
    """Returns the per-probe observers that planted faults must be read by, companions and degeneracy included."""
    names = {"nll", "accuracy"}  # what the degeneracy gate reads
    for clause in contract.clauses:
        if is_assayed(clause):
            source = SOURCES.get(clause.observer, clause.observer)
            names |= {source, COMPANIONS.get(source, source)}
    return frozenset(names)


def is_assayed(clause: Clause) -> bool:
    """Tells whether faults are planted for a clause at a dose: it is a gate with a margin."""
    return clause.kind is Kind.GATE and clause.margin is not None


def _sees_degeneracy(contract: Contract, probes: ProbeSet, measured: Measurements) -> bool:
    """Tells whether some planted fault makes the degeneracy gate fail."""
    gate = next((c for c in contract.clauses if c.observer == "degeneracy"), None)
    if gate is None:
        return False
    judged = (judge_degeneracy(table, probes, alpha=gate.alpha).decision for table in measured.faults.values())
    return any(decision.outcome is Outcome.FAIL for decision in judged)
