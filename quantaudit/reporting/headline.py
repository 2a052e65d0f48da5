"""The four numbers a reader should see first: gates, the closest one, answers kept, bits stored."""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Behaviour
from quantaudit.core.report import AuditReport, ClauseResult
from quantaudit.reporting.plain_words import tally
from quantaudit.reporting.rows import margin_used
from quantaudit.reporting.ruler import MISSING, ruler_for, write_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One big number with what it counts and where it comes from."""

    number: str
    label: str
    detail: str


def build_headlines(report: AuditReport) -> tuple[Headline, ...]:
    """Returns the four headlines of a report, in reading order."""
    return (_gates(report), _closest(report), _recovery(report), _bits(report))


def _gates(report: AuditReport) -> Headline:
    gates = report.gates()
    counts = {outcome: sum(g.decision.outcome is outcome for g in gates) for outcome in Outcome}
    return Headline(
        number=f"{counts[Outcome.PASS]} of {len(gates)}",
        label="gates pass",
        detail=f"{counts[Outcome.FAIL]} fail, {counts[Outcome.UNDECIDED]} undecided",
    )


def _closest(report: AuditReport) -> Headline:
    measured = [(used, g) for g in report.gates() if (used := margin_used(g)) is not None]
    if not measured:
        is_exact = all(g.decision.is_exact for g in report.gates()) and bool(report.gates())
        return Headline(
            number="exact" if is_exact else MISSING,
            label="worst gate",
            detail="every gate was decided by equality" if is_exact else "no gate has a measured interval",
        )
    used, gate = max(measured, key=lambda pair: pair[0])
    return Headline(number=_percent(used), label="of its margin reached by the worst gate", detail=_reach(gate))


def _percent(share: float) -> str:
    if share < 10:
        return f"{100 * share:.0f}%"
    return f"{write_number(share)} x" if share < float("inf") else "inf"


def _reach(gate: ClauseResult) -> str:
    ruler = ruler_for(gate)
    interval = ruler.interval(gate.estimate.interval if gate.estimate else None)
    return f"{gate.name}: {interval} against {ruler.size(gate.clause.margin)} {ruler.unit}".rstrip()


def _recovery(report: AuditReport) -> Headline:
    found = tally(report, Behaviour.ANSWER)
    families = report.probes.families
    lost, gained = sum(f.hi_right_lo_wrong for f in families), sum(f.hi_wrong_lo_right for f in families)
    return Headline(
        number=MISSING if found.recovery is None else f"{100 * found.recovery:.1f}%",
        label="recovery: right answers of lo over those of hi",
        detail=f"{lost:,} lost and {gained:,} gained, of {report.probes.num_probes:,} paired probes",
    )


def _bits(report: AuditReport) -> Headline:
    lo, hi = report.lo, report.hi
    if lo.stored_bits_per_expert_weight is None:
        label, detail = "bits stored per expert weight", "recorded results: no model was opened"
        return Headline(number=MISSING, label=label, detail=detail)
    return Headline(
        number=_write_bits(lo.stored_bits_per_expert_weight),
        label="bits stored per expert weight",
        detail=(
            f"hi stores {_write_bits(hi.stored_bits_per_expert_weight)}; "
            f"{lo.num_quantized_tensors:,} of {lo.num_expert_tensors:,} expert tensors quantized"
        ),
    )


def _write_bits(bits: float | None) -> str:
    return MISSING if bits is None else write_number(bits)
