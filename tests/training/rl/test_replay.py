"""The replay is of the weights that were taken, however the trainer goes on, and of the execution asked for."""

from __future__ import annotations

import torch

from quantaudit.core.recipe import ComputeDtype
from quantaudit.training.checking.canary import Hypothesis
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.replay import Replayer, canary_requests
from tests.training.rl.tiny import SHORT, TINY, W4A8, tiny_model, world


def test_weights_that_were_taken_stay_as_they_were() -> None:
    trainer = Policy(tiny_model(), W4A8, SHORT)
    declared = Hypothesis(execution=trainer.declared_execution())
    replayer, other = (Replayer(TINY, canary_requests(world())) for _ in range(2))
    replayer.take(trainer)
    other.take(trainer)
    before = other.replay(declared)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(0.5)
    trainer.set_masters({name: 0.5 * master for name, master in trainer.masters.items()})
    after = replayer.replay(declared)
    assert before is not None and after is not None and torch.equal(before, after)


def test_a_result_is_kept_for_its_hypothesis_and_its_weights_only() -> None:
    trainer = Policy(tiny_model(), W4A8, SHORT)
    replayer = Replayer(TINY, canary_requests(world()))
    replayer.take(trainer)
    declared = trainer.declared_execution()
    first = replayer.replay(Hypothesis(execution=declared))
    again = replayer.replay(Hypothesis(execution=declared.model_copy()))
    narrow = replayer.replay(Hypothesis(execution=declared.model_copy(update={"router": ComputeDtype.BFLOAT16})))
    assert first is not None and again is first and narrow is not None and not torch.equal(first, narrow)
    assert replayer.replay(Hypothesis(execution=declared)) is not first
    trainer.set_masters({name: 0.9 * master for name, master in trainer.masters.items()})
    replayer.take(trainer)
    newer = replayer.replay(Hypothesis(execution=declared))
    assert newer is not None and not torch.equal(first, newer)
