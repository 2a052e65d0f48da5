"""A canary that does as it declares is silent; one that does not is named by the execution that gives its bits.

The engine here is a function of the hypothesis alone: equal hypotheses give equal bits, others others.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.step_log import UNEXPLAINED, FindingKind
from quantaudit.training.checking.canary import CanaryRun, Hypothesis, check_canary
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush

DECLARED = EngineExecution(activations={"layers.1.experts.w1": "mxfp8-e4m3-even"})
BF16 = ComputeDtype.BFLOAT16


def bits_of(hypothesis: Hypothesis) -> Tensor:
    text = f"{hypothesis.execution.digest()} {hypothesis.flush} {hypothesis.age}"
    return torch.tensor([float(byte) for byte in hashlib.sha256(text.encode()).digest()])


def run_as(hypothesis: Hypothesis, *, longest_age: int = 3) -> CanaryRun:
    def replay(asked: Hypothesis) -> Tensor | None:
        return bits_of(asked) if asked.age <= longest_age else None

    return CanaryRun(bits=bits_of(hypothesis), declared=DECLARED, replay=replay)


def with_execution(**changes: object) -> Hypothesis:
    return Hypothesis(execution=DECLARED.model_copy(update=changes))


def test_an_engine_that_does_as_it_declares_is_silent() -> None:
    outcome = check_canary(run_as(Hypothesis(execution=DECLARED)), 0)
    assert outcome.finding is None
    assert (outcome.check.num_differing, outcome.check.max_difference) == (0, 0.0)


CASES = {
    "activation-format": with_execution(activations={}),
    "router-precision": with_execution(router=BF16),
    "state-precision": with_execution(state=BF16),
    "latent-precision": with_execution(latent=BF16),
    "compute-dtype": with_execution(dtype=BF16),
    "batch-size": with_execution(max_batch=4),
    "cache-not-flushed": Hypothesis(execution=DECLARED, flush=Flush(latent=False), age=2),
    "activation-format+router-precision": with_execution(activations={}, router=BF16),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_engine_really_does_is_named(name: str) -> None:
    outcome = check_canary(run_as(CASES[name]), 5)
    assert outcome.finding is not None
    assert (outcome.finding.name, outcome.finding.step, outcome.finding.kind) == (name, 5, FindingKind.EXECUTION)
    assert outcome.check.num_differing > 0 and outcome.check.reproduced_by


def test_the_finding_says_what_was_declared_and_what_is_done() -> None:
    finding = check_canary(run_as(CASES["activation-format"]), 0).finding
    assert finding is not None
    assert (finding.field, finding.train, finding.serve) == ("activations", "mxfp8-e4m3-even", "none")


def test_another_activation_scheme_is_told_from_none() -> None:
    served = with_execution(activations=dict.fromkeys(DECLARED.activations, "mxfp8-e4m3-rceil"))
    finding = check_canary(run_as(served), 0).finding
    assert finding is not None and finding.serve == "mxfp8-e4m3-rceil"


@pytest.mark.parametrize(
    "hypothesis",
    [
        with_execution(router=BF16, dtype=BF16, max_batch=3),
        Hypothesis(execution=DECLARED, flush=Flush(kda=False), age=7),
    ],
)
def test_what_no_candidate_gives_is_unexplained(hypothesis: Hypothesis) -> None:
    outcome = check_canary(run_as(hypothesis), 0)
    assert outcome.finding is not None and outcome.finding.name == UNEXPLAINED
    assert outcome.check.reproduced_by == ""


def test_memories_that_were_not_kept_are_not_claimed() -> None:
    outcome = check_canary(run_as(CASES["cache-not-flushed"], longest_age=1), 0)
    assert outcome.finding is not None and outcome.finding.name == UNEXPLAINED


def test_no_cause_is_looked_for_where_weights_differ() -> None:
    outcome = check_canary(run_as(CASES["router-precision"]), 0, diagnose=False)
    assert outcome.finding is None and outcome.check.num_differing > 0


def test_bits_count_and_not_values() -> None:
    run = CanaryRun(bits=torch.tensor([0.0, 1.0]), declared=DECLARED, replay=lambda h: torch.tensor([-0.0, 1.0]))
    check = check_canary(run, 0, diagnose=False).check
    assert (check.num_differing, check.max_difference) == (1, 0.0)
