"""The audit report: the only source of every view. The digest covers all of it except the `run` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from quantaudit.core.contract import Clause, Contract
from quantaudit.core.decision import Decision, Estimate, Outcome
from quantaudit.core.diagnostic import Diagnostic, Flip, Ladder, Series
from quantaudit.core.probe import Behaviour
from quantaudit.core.recipe import Recipe
from quantaudit.core.serial import Frozen, digest_of
from quantaudit.core.verdict import Verdict

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 1


class RealizationInfo(Frozen):
    """One of the two models of an audit.

    Attributes:
        label: Short name for tables.
        source: Where it came from: "embedded model", a path's last component, or "hi under recipe NAME".
        weights_digest: Digest of every tensor's name, dtype, shape and bytes.
        stored_bits_per_expert_weight: Bytes really stored for routed experts, scales included, in bits a weight;
            `None` for recorded results, where no model was opened.
        num_quantized_tensors: Expert tensors held in a scheme.
        num_expert_tensors: All expert tensors.
        schemes: Schemes in use, with the digest of their arithmetic.
        notes: Sentences that qualify the comparison.
    """

    label: str
    source: str
    weights_digest: str
    stored_bits_per_expert_weight: float | None
    num_quantized_tensors: int
    num_expert_tensors: int
    schemes: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class FamilySummary(Frozen):
    """One family of probes, with both models' raw accuracy (or refusal behaviour) for orientation."""

    name: str
    behaviour: Behaviour
    num_probes: int
    num_clusters: int
    hi_accuracy: float
    lo_accuracy: float
    chance_accuracy: float
    hi_right_lo_wrong: int
    hi_wrong_lo_right: int
    share_under_one_nat: float


class ProbeSummary(Frozen):
    """The probe set and its families."""

    name: str
    source: str
    probes_digest: str
    split: str
    num_probes: int
    num_scored_tokens: int
    families: tuple[FamilySummary, ...]


class ClauseResult(Frozen):
    """One clause on one slice.

    Attributes:
        name: Clause name, with the family in brackets if it is judged by family: `task[sorting]`.
        clause: The clause as the contract has it.
        unit: Unit of hi, lo, difference and margin: "nats", "share", ...
        larger_is_better: Which way the raw metric points; differences are always damage (positive is worse for lo).
        hi: Mean of the raw metric of hi; `None` for exact clauses.
        lo: Same for lo.
        estimate: Damage with its interval; `None` for exact clauses and where nothing could be measured.
        floor: Damage that hi shows against itself under another batch size, padding and thread count.
        smallest_fault: Smallest planted damage, in margins, at which the gate failed: what it can be said to guard
            against. `None` if it never did, and for clauses without a margin.
        decision: What it comes to; an alarm is raised where it is FAIL, and decides nothing.
    """

    name: str
    clause: Clause
    family: str | None
    unit: str
    larger_is_better: bool
    hi: float | None
    lo: float | None
    estimate: Estimate | None
    floor: float | None
    smallest_fault: float | None = None
    decision: Decision


class Control(Frozen):
    """A control of the run: it must hold, or no clause can admit."""

    name: str
    outcome: Outcome
    detail: str
    covers: tuple[str, ...] = ()


class ExpertMap(Frozen):
    """A layer x expert table: weight error, load, routing agreement, coverage.

    Attributes:
        values: One row a layer, one entry an expert; `None` where nothing was measured.
    """

    name: str
    title: str
    unit: str
    larger_is_better: bool | None
    layers: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]


class LayerProfile(Frozen):
    """One number a layer, against the floor."""

    name: str
    title: str
    unit: str
    larger_is_better: bool | None
    layers: tuple[int, ...]
    values: tuple[float, ...]
    floor: tuple[float, ...] = ()


class Witness(Frozen):
    """One probe on which hi and lo part; text of restricted probes is redacted unless asked for.

    Attributes:
        damage: Loss of the answer margin, nats.
        change: "right to wrong", "wrong to right", "wrong to another wrong", or "margin only".
    """

    probe_id: str
    family: str
    cluster: str
    prompt: str
    expected: str
    hi_response: str
    lo_response: str
    hi_margin: float
    lo_margin: float
    damage: float
    change: str
    is_redacted: bool


class Discrepancy(Frozen):
    """One weight that differs: where, and both bit patterns."""

    tensor: str
    coordinate: tuple[int, ...]
    hi_value: float
    lo_value: float
    hi_bits: str
    lo_bits: str


class Environment(Frozen):
    """What determines the bits of a run; part of the digest."""

    quantaudit: str
    python: str
    torch: str
    device: str
    cpu_capability: str
    threads: int
    batch_size: int
    compute_dtype: str
    fused_kernels: str


class StageTime(Frozen):
    """How long one stage took."""

    name: str
    seconds: float
    items: int


class Sequential(Frozen):
    """How a pass went that could stop early.

    Attributes:
        stopped_early: Whether a look rejected and the rest was not run.
        num_probes_planned: Probes of the whole pass.
        num_probes_run: Probes that were run.
        num_looks: Looks that were taken, at all gates that could by then.
        gates: Names of the gates that look.
        evidence_needed: Evidence at which one of them rejects: their number over `alpha_looks`.
        alpha_looks: Chance that any look ever rejects a gate within its margin, at most.
        alpha_end: The same for the rejections at the end of a pass that was not stopped.
    """

    stopped_early: bool
    num_probes_planned: int
    num_probes_run: int
    num_looks: int
    gates: tuple[str, ...]
    evidence_needed: float
    alpha_looks: float
    alpha_end: float


class RunBlock(Frozen):
    """Everything volatile; left out of the digest.

    Attributes:
        earlier_audits: Audits under this contract and these probes that the output folder already held.
        cached_controls: Whether the controls were taken from an earlier run of equal digests.
        controls_from: When that run was started.
    """

    started: str
    seconds: float
    peak_memory_mb: float
    host_load: float
    command: str
    stages: tuple[StageTime, ...] = ()
    earlier_audits: int = 0
    cached_controls: bool = False
    controls_from: str | None = None


def _is_left_out(sequential: Sequential | None) -> bool:
    """Tells whether the key is not written either: a pass that could not stop has nothing to say."""
    return sequential is None


class AuditReport(Frozen):
    """The result of `quantaudit run`.

    Attributes:
        sequential: How the pass went if it could stop early; `None` if it could not.
    """

    schema_version: Literal[1] = 1
    kind: Literal["audit"] = "audit"
    verdict: Verdict
    hi: RealizationInfo
    lo: RealizationInfo
    recipe: Recipe | None
    contract: Contract
    probes: ProbeSummary
    clauses: tuple[ClauseResult, ...]
    controls: tuple[Control, ...]
    layer_profiles: tuple[LayerProfile, ...] = ()
    expert_maps: tuple[ExpertMap, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    series: tuple[Series, ...] = ()
    ladder: Ladder | None = None
    flips: tuple[Flip, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    discrepancies: tuple[Discrepancy, ...] = ()
    sequential: Sequential | None = Field(default=None, exclude_if=_is_left_out)
    not_examined: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Environment
    run: RunBlock

    def report_digest(self) -> str:
        """Returns the sha256 of everything but the run block."""
        return digest_of(self.model_dump(mode="json", exclude={"run"}))

    def gates(self) -> tuple[ClauseResult, ...]:
        """Returns the clauses that decide, in the order of gates."""
        return tuple(c for c in self.clauses if c.clause.kind == "gate")

    def alarms(self) -> tuple[ClauseResult, ...]:
        """Returns the clauses that are only shown."""
        return tuple(c for c in self.clauses if c.clause.kind == "alarm")

    def to_frame(self) -> pandas.DataFrame:
        """Returns one row a clause: name, stage, hi, lo, damage, bounds, margin, floor, outcome."""
        import pandas

        return pandas.DataFrame([_row(c) for c in self.clauses])


def _row(result: ClauseResult) -> dict[str, str | float | None]:
    estimate = result.estimate
    return {
        "clause": result.name,
        "stage": result.clause.stage.value,
        "kind": result.clause.kind.value,
        "hi": result.hi,
        "lo": result.lo,
        "damage": estimate.value if estimate else None,
        "lower": estimate.interval.lower if estimate else None,
        "upper": estimate.interval.upper if estimate else None,
        "margin": result.clause.margin,
        "floor": result.floor,
        "outcome": result.decision.outcome.value,
    }
