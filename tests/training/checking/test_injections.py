"""Injections: what is asked for is parsed or refused, acts from its step on and for as long as asked, and is found.

The loop is that of `benchmarks/sensitivity`; a check that finds every injection under its name, many times, is there.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.sensitivity.loop import LoopSettings, SmallLoop
from quantaudit.core.errors import InputError
from quantaudit.core.step_log import Finding
from quantaudit.identity.mismatches.registry import mismatch_names
from quantaudit.training.checking.injections.registry import PLANS, get_plan, list_injections, make_faults
from quantaudit.training.checking.injections.request import InjectionRequest, parse_request
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, Halves, PostLoad
from quantaudit.training.rl.placement import deal_experts
from quantaudit.training.rl.sync import QuantizeAt


def test_a_request_is_parsed_and_written_back() -> None:
    text = "another-rule@3:scheme=mxfp4-floor,for=2"
    request = parse_request(text)
    assert request == InjectionRequest(name="another-rule", step=3, options={"scheme": "mxfp4-floor", "for": "2"})
    assert request.in_words() == text
    assert parse_request("stale@0").in_words() == "stale@0"


@pytest.mark.parametrize("text", ["stale", "stale@", "stale@x", "stale@-1", "stale@1:", "stale@1:a", "stale@1:a=1,a=2"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--inject"):
        parse_request(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stall@1", "did you mean stale"),
        ("stale@1:colour=red", "colour"),
        ("stale@1:experts=many", "experts"),
        ("permuted-experts@1:experts=2", "can touch some of them only"),
        ("another-rule@1:scheme=mxfp4-flor", "mxfp4-flor"),
        ("gate-up-layout@1:halves=gate-first", "up-first, interleaved"),
        ("router-precision@1:dtype=float8", "float32, bfloat16"),
        ("cache-not-flushed@1:part=keys", "kda, latent, logits"),
        ("previous-step@1:for=0", "whole number"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_faults([text])


def test_every_mismatch_of_the_identity_work_can_be_planted() -> None:
    names = [about.name for about in list_injections()]
    assert len(names) == len(set(names))
    assert set(mismatch_names()) <= set(names)


def test_every_injection_says_what_it_does_and_how_it_is_found() -> None:
    for plan in PLANS:
        assert plan.about.sentence.endswith(".") and plan.about.found_as
        assert get_plan(plan.about.name) is plan


def test_points_act_from_their_step_for_as_long_as_asked() -> None:
    faults = make_faults(["layout-scales-kept@2:for=2"])
    kept = [not faults.post_load(step, PostLoad()).refresh_scales for step in range(6)]
    assert kept == [False, False, True, True, False, False]


def test_several_injections_act_together() -> None:
    faults = make_faults(["router-precision@0", "state-precision@1", "gate-up-layout@0:halves=up-first"])
    declared = EngineExecution()
    assert faults.execution(0, declared).router == "bfloat16" and faults.execution(0, declared).state == "float32"
    both = faults.execution(1, declared)
    assert (both.router, both.state) == ("bfloat16", "bfloat16")
    assert faults.post_load(0, PostLoad()).halves is Halves.UP_FIRST
    assert faults.flush(0, Flush()) == Flush()
    assert [request.name for request in faults.requests] == ["router-precision", "state-precision", "gate-up-layout"]


def test_draws_are_those_of_the_seed() -> None:
    declared = deal_experts(8, 2)
    places = [make_faults(["placement-change@0"], seed=seed).placement(0, declared) for seed in (1, 1, 2, 3, 4)]
    assert places[0] == places[1] and len({place.place for place in places}) > 1
    swapped = [a != b for a, b in zip(places[0].place, declared.place, strict=True)]
    assert sum(swapped) == 2


def found_in(
    inject: str, *, weight: str = "mxfp4-even", at: QuantizeAt = QuantizeAt.TRAINER, canary: bool = False
) -> list[Finding]:
    """Runs four steps with an injection at the second last, and returns all findings."""
    torch.set_num_threads(1)
    loop = SmallLoop(LoopSettings(weight=weight, quantize_at=at, has_canary=canary), make_faults([inject], seed=1))
    outcomes = [loop.step(with_truth=False).outcome for _ in range(4)]
    return [finding for outcome in outcomes if outcome is not None for finding in outcome.findings]


STATE = {
    "exponent-from-ratio@2": "exponent-from-ratio",
    "shared-scale@2": "shared-scale",
    "layer-set-pattern@2": "skipped-layer",
    "checkpoint-round-trip@2": "quantized-twice",
    "bucket-lost@2": "tensor-not-synced",
    "gate-up-layout@2:halves=interleaved": "interleaved-gate-up",
}


@pytest.mark.parametrize("inject", STATE)
def test_a_planted_mismatch_is_found_at_its_step_and_named(inject: str) -> None:
    (finding,) = found_in(inject)
    assert (finding.name, finding.step, finding.explains) == (STATE[inject], 2, 1.0)


def test_on_arrival_a_lost_weight_is_found_too() -> None:
    (finding,) = found_in("tensor-not-synced@2", at=QuantizeAt.ARRIVAL)
    assert (finding.name, finding.step) == ("tensor-not-synced", 2)


def test_a_global_scale_that_is_never_renewed_is_found() -> None:
    (finding,) = found_in("frozen-global-scale@2", weight="nvfp4")
    assert (finding.name, finding.step, finding.explains) == ("frozen-global-scale", 2, 1.0)


def test_a_mismatch_that_cannot_happen_is_refused() -> None:
    with pytest.raises(InputError, match="such as nvfp4"):
        found_in("frozen-global-scale@2")
    with pytest.raises(InputError, match="another format, shape or rule"):
        found_in("zero-point@2")


@pytest.mark.parametrize("inject", ["activation-format@2", "state-precision@2", "cache-not-flushed@2"])
def test_an_execution_that_is_not_declared_is_found_by_the_canary(inject: str) -> None:
    (finding,) = found_in(inject, canary=True)
    assert (finding.name, finding.step) == (inject.split("@")[0], 2)


def test_latent_mismatches_raise_no_alarm() -> None:
    assert found_in("quantized-twice@2") == []
