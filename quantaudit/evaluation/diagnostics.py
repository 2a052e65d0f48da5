"""Everything an audit shows beside its clauses from the paired pass: numbers and series, each against its floor.

Nothing here runs a model or decides anything. The order is that of the reader's questions: what moved at the tokens,
what became of the answers, does confidence still hold, who computes, does the error grow with depth.
"""

from __future__ import annotations

from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.answer_diagnostics import diagnose_answers
from quantaudit.evaluation.calibration_diagnostics import diagnose_calibration
from quantaudit.evaluation.depth_diagnostics import diagnose_depth
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.routing_diagnostics import Effect, diagnose_routing, worst_error
from quantaudit.evaluation.shown import Shown, put_together
from quantaudit.evaluation.token_diagnostics import diagnose_tokens
from quantaudit.evaluation.weights import WeightEvidence
from quantaudit.observers.token_sums import Tokens


def diagnose(probes: ProbeSet, measured: Measurements, weights: WeightEvidence) -> Shown:
    """Returns the diagnostics and series of the paired pass."""
    lo, floor = measured.details.tokens.join(), measured.floor_details.tokens.join()
    effect = Effect(
        hidden=worst_error(measured.sums),
        hidden_floor=worst_error(measured.floor_sums),
        kl=_mean_kl(lo),
        kl_floor=_mean_kl(floor),
    )
    routing, floor_routing = measured.details.routing, measured.floor_details.routing
    return put_together(
        (
            diagnose_tokens(probes, lo, floor),
            diagnose_answers(probes, measured.lo, measured.floor),
            diagnose_calibration(probes, lo, floor),
            diagnose_routing(routing, floor_routing, measured.sums, measured.floor_sums, effect),
            diagnose_depth(weights, measured.sums, measured.floor_sums),
        )
    )


def _mean_kl(tokens: Tokens | None) -> float:
    """Returns the mean of KL(hi || lo), summed without negative terms, so that rounding enters as its square."""
    return 0.0 if tokens is None else float(tokens.view.k3_M.mean())
