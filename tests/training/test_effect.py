"""Reductions are paired by probe, above zero where the last arm is better, and zero between equal arms."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.probe import Split
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import apply_recipe
from quantaudit.probes.world import default_probes
from quantaudit.training.effect import measure_effect
from tests.engines.small import CPU, experts_in
from tests.training.toy import toy_hi

PROBES = default_probes(Split.SELECT, {"copying": 20, "sorting": 20, "benign": 20})


def engine_under(weight: str | None) -> NativeEngine:
    """Returns the toy model under a weight scheme."""
    hi = toy_hi()
    return NativeEngine(hi if weight is None else apply_recipe(hi, experts_in(weight)), CPU)


def test_a_finer_arm_is_a_proved_reduction_and_a_coarser_one_is_not() -> None:
    arms = {"int2": engine_under("int2-g32"), "int8": engine_under("int8-channel")}
    better = measure_effect(engine_under(None), arms, PROBES).reduction("int2", "kl-forward")
    worse = measure_effect(engine_under(None), dict(reversed(arms.items())), PROBES).reduction("int8", "kl-forward")
    assert better.is_proved and not worse.is_proved
    assert better.estimate.value == pytest.approx(-worse.estimate.value, rel=1e-12)


def test_a_reduction_is_the_difference_of_the_obstructions() -> None:
    found = measure_effect(engine_under(None), {"a": engine_under("int2-g32"), "b": engine_under("int3-g32")}, PROBES)
    for reduction in found.reductions:
        before, after = (found.obstruction(arm, reduction.observer).estimate.value for arm in ("a", "b"))
        # means over 60 probes in float64
        assert reduction.estimate.value == pytest.approx(before - after, abs=1e-12)
    assert found.num_probes == len(PROBES.probes)
    assert found.probes_digest == PROBES.digest()


def test_equal_arms_differ_by_exactly_nothing() -> None:
    found = measure_effect(engine_under(None), {"a": engine_under("int3-g32"), "b": engine_under("int3-g32")}, PROBES)
    assert {(r.estimate.value, r.estimate.interval.lower) for r in found.reductions} == {(0.0, 0.0)}
    assert not [r for r in found.reductions if r.is_proved]


def test_hi_against_itself_has_no_divergence() -> None:
    found = measure_effect(engine_under(None), {"hi": engine_under(None)}, PROBES)
    assert found.reductions == ()
    assert all(o.estimate.value == pytest.approx(0.0, abs=1e-12) for o in found.obstructions)
    assert np.isfinite([o.estimate.interval.upper for o in found.obstructions]).all()
