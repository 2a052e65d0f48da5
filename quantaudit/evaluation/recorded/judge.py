"""The verdict on two recordings, top to bottom: pair, plant, decide, control, admit, report.

The laws are those of a run. Three controls: hi paired with itself is exactly zero; hi recorded twice gives the floor;
damage planted in hi's own numbers makes every gate fail. Whatever the files do not hold is not measured, and keeps a
contract that asks for it from being admitted.
"""

from __future__ import annotations

import platform

import numpy as np

from quantaudit.core.contract import Contract, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.errors import NotMeasuredError
from quantaudit.core.report import (
    AuditReport,
    ClauseResult,
    Control,
    Environment,
    ProbeSummary,
    RealizationInfo,
    RunBlock,
)
from quantaudit.evaluation.admission import admit
from quantaudit.evaluation.recorded.clauses import MEASURABLE, Case, decide_recorded
from quantaudit.evaluation.recorded.discordance import (
    Answers,
    collect_answers,
    diagnose,
    find_witnesses,
    list_flips,
    summarize,
)
from quantaudit.evaluation.recorded.floor import find_floor
from quantaudit.evaluation.recorded.items import Recording
from quantaudit.evaluation.recorded.pairing import OBSERVERS, Pair, make_side, name_some, pair_up, table_of
from quantaudit.evaluation.recorded.planting import plant_faults
from quantaudit.evaluation.sensitivity import sensitivity_control

NO_MODEL = "Recorded results: no model was run."
_NONE = "not used"


def judge_recordings(
    hi: Recording, lo: Recording, contract: Contract, *, again: Recording | None, version: str, run: RunBlock
) -> AuditReport:
    """Judges a deployment's recorded results against its reference's.

    Args:
        hi: Results of the reference.
        lo: Results of the deployment.
        contract: What they must meet.
        again: Results of the reference recorded a second time, for the floor.
        version: Of quantaudit.
        run: When, where and how.

    Raises:
        InputError: If the recordings are not comparable.
        NotMeasuredError: If they share no item, or are one file.
    """
    if hi.digest == lo.digest:
        raise NotMeasuredError(f"{hi.name} and {lo.name} hold the same bytes, so nothing was compared")
    pair = pair_up(hi, lo)
    case = Case(
        contract=contract,
        pair=pair,
        table=table_of(pair.hi, pair.lo),
        floor=find_floor(hi, again, pair),
        faults=plant_faults(pair.hi, pair.probes),
    )
    if not case.table.parts:
        raise NotMeasuredError(f"none of {pair.num_common:,} common items has a number on both sides")
    return _report(case, hi, lo, version, run)


def _report(case: Case, hi: Recording, lo: Recording, version: str, run: RunBlock) -> AuditReport:
    pair = case.pair
    results = decide_recorded(case)
    controls = (_identity_control(hi, pair), case.floor.control, sensitivity_control(_smallest_faults(results)))
    families = collect_answers(pair.probes, case.table)
    return AuditReport(
        verdict=admit(results, controls, is_exact=False),
        hi=_describe(hi, lo),
        lo=_describe(lo, hi),
        recipe=None,
        contract=case.contract,
        probes=_summarize(pair, families),
        clauses=results,
        controls=controls,
        diagnostics=tuple(d for answers in families for d in diagnose(answers)),
        flips=list_flips(families, pair.probes),
        witnesses=find_witnesses(pair.probes, case.table),
        not_examined=_not_examined(pair, results),
        notes=(NO_MODEL, *dict.fromkeys((*hi.notes, *lo.notes))),
        environment=_environment(version),
        run=run,
    )


def _summarize(pair: Pair, families: tuple[Answers, ...]) -> ProbeSummary:
    return ProbeSummary(
        name=pair.probes.name,
        source=pair.probes.source,
        probes_digest=pair.probes.digest(),
        split="audit",
        num_probes=pair.num_common,
        num_scored_tokens=0,
        families=tuple(s for answers in families if (s := summarize(answers, pair.probes)) is not None),
    )


def _identity_control(hi: Recording, pair: Pair) -> Control:
    """Hi paired with itself must be exactly zero, on every number that it holds."""
    second = make_side([probe.id for probe in pair.probes.probes], {item.id: item for item in hi.items})
    parts = [part for parts in table_of(pair.hi, second).parts.values() for part in parts]
    is_zero = bool(parts) and all(np.array_equal(p.hi_R, p.lo_R, equal_nan=True) for p in parts)
    is_whole = sum(len(p.index_R) for p in parts) == sum(int(has_P.sum()) for has_P in pair.hi.has_P.values())
    holds = is_zero and is_whole
    detail = f"hi paired with itself is {'exactly' if holds else 'not'} zero over {len(hi.items):,} items"
    return Control(name="identity", outcome=Outcome.PASS if holds else Outcome.FAIL, detail=detail)


def _smallest_faults(results: tuple[ClauseResult, ...]) -> dict[str, float | None]:
    """Returns the smallest planted damage at which every gate that was measured failed."""
    gates = (r for r in results if r.clause.kind is Kind.GATE and r.clause.margin is not None)
    return {r.name: r.smallest_fault for r in gates if r.estimate is not None}


def _describe(run: Recording, other: Recording) -> RealizationInfo:
    """Returns what the report says of one side; sides of one name are told apart by their digests."""
    label = run.name if run.name != other.name else f"{run.name} ({run.digest[:8]})"
    return RealizationInfo(
        label=label,
        source=run.name,
        weights_digest=run.digest,
        stored_bits_per_expert_weight=None,
        num_quantized_tensors=0,
        num_expert_tensors=0,
        notes=(f"{label}: {run.format.value}, {len(run.items):,} items; the digest is of the file.",),
    )


def _not_examined(pair: Pair, results: tuple[ClauseResult, ...]) -> tuple[str, ...]:
    sentences = ["The models: weights, routing, and whatever the files do not hold."]
    for side, other, only in (("hi", "lo", pair.only_hi), ("lo", "hi", pair.only_lo)):
        if only:
            sentences.append(f"{len(only):,} items that {side} answered and {other} did not: {name_some(only)}.")
    for observer in OBSERVERS:
        lone_P = pair.hi.has_P[observer] ^ pair.lo.has_P[observer]
        count = int(lone_P.sum()) - len(pair.only_hi) - len(pair.only_lo)
        if observer != "score" and count > 0:
            sentences.append(f"{observer} of {count:,} common items that one side alone has.")
    total = len(pair.probes.probes)
    held = {name: int((pair.hi.has_P[name] | pair.lo.has_P[name]).sum()) for name in OBSERVERS if name != "score"}
    partly = [f"{name} ({count:,})" for name, count in held.items() if 0 < count < total]
    if partly:
        sentences.append(f"Items without the number in question: of {total:,}, not all hold {', '.join(partly)}.")
    missing = [r.name for r in results if r.estimate is None and r.clause.observer in MEASURABLE]
    beyond = [r.name for r in results if r.clause.observer not in MEASURABLE]
    if missing or beyond:
        sentences.append(f"Clauses that these files cannot decide: {', '.join((*beyond, *missing))}.")
    if pair.uncompared:
        kinds = ", ".join(kind.value for kind in pair.uncompared)
        sentences.append(f"Whether both had the same {kinds}: the files do not say it of every item.")
    return tuple(sentences)


def _environment(version: str) -> Environment:
    return Environment(
        quantaudit=version,
        python=platform.python_version(),
        torch=_NONE,
        device=_NONE,
        cpu_capability=_NONE,
        threads=1,
        batch_size=0,
        compute_dtype="as recorded",
        fused_kernels=_NONE,
    )
