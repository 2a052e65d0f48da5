"""The controls of every run, and what follows when one fails: nothing can be admitted."""

from __future__ import annotations

import math

from quantaudit.core.decision import Outcome
from quantaudit.core.engine import WeightPair
from quantaudit.core.report import Control
from quantaudit.evaluation.floor import count_changed
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.weights import check_pair
from quantaudit.observers.sums import hidden_error


def identity_control(measured: Measurements) -> Control:
    """Hi through the complete lo path, nothing quantized, must be hi exactly."""
    table, count = measured.identity, measured.identity_probes
    is_zero = bool(table.parts) and table.is_zero()
    detail = (
        f"exactly zero on every observer over {count:,} probes"
        if is_zero
        else f"the lo path changes hi although nothing is quantized ({count:,} probes)"
    )
    return Control(name="identity", outcome=Outcome.PASS if is_zero else Outcome.FAIL, detail=detail)


def floor_control(measured: Measurements) -> Control:
    """Hi against itself under another execution; gates compare their margins with it themselves."""
    errors = hidden_error(measured.floor_sums.hidden)
    worst = max(errors.values(), default=math.inf)
    changed, count = count_changed(measured.floor)
    how = f"in quarters of a batch with {measured.floor_threads}"
    if not math.isfinite(worst) or not count:
        return Control(name="floor", outcome=Outcome.FAIL, detail=f"hi against itself {how} was not measured")
    detail = (
        f"hi against itself {how}: {changed:,} of {count:,} probes read otherwise, and the relative hidden error is at "
        f"most {worst:.2g} over {len(errors)} layers"
    )
    return Control(name="floor", outcome=Outcome.PASS, detail=detail)


def sees_unquantized(pair: WeightPair) -> bool:
    """Tells whether integrity notices a weight that was left out of the scheme it should be held in."""
    planted = WeightPair(
        name=pair.name,
        layer=pair.layer,
        is_expert=pair.is_expert,
        hi=pair.hi,
        lo=pair.hi,
        wanted=pair.wanted or "a scheme",
        held=None,
    )
    return bool(check_pair(planted))
