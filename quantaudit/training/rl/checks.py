"""The check of one step as the loop sees it: all sides of the weights, the canary, the transport, and the gap.

What is compared and how it is diagnosed is in `training/checking`; this file reads the engine, undoes its layout, and
replays in the trainer's process what the engine declares. Engine and trainer run the canary at the same time: with a
core for each, a check takes as long as the slower of both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from quantaudit.core.step_log import GapNumbers, TransportCheck
from quantaudit.training.checking.canary import Hypothesis
from quantaudit.training.checking.checker import CheckOutcome, StepChecker
from quantaudit.training.checking.gap import measure_gap
from quantaudit.training.checking.gathering import Trainer, gather_sides, trained_weights
from quantaudit.training.rl.decoding import Request
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.learning import score_answers
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.replay import Replayer, begin_canary, new_logprobs, replay_rollouts
from quantaudit.training.rl.rollouts import forced_requests
from quantaudit.training.rl.samples import Sample
from quantaudit.training.rl.settings import Replay, RlSettings
from quantaudit.training.rl.sync import Declared, Delivery, Shipment, deliver


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The distances between reported and recomputed log-probabilities of one step's tokens; `None` if not measured.

    Attributes:
        natural: The trainer routes by itself, or as the settings say.
        forced: The trainer routes as the engine did.
        floor: The trainer's weights through the engine's execution, in the trainer's process.
        seconds: What measuring took.
    """

    natural: GapNumbers | None
    forced: GapNumbers | None
    floor: GapNumbers | None
    seconds: float


class LoopChecks:
    """Checks the steps of one run."""

    def __init__(
        self, checker: StepChecker, replayer: Replayer, canary: Sequence[Request], settings: RlSettings
    ) -> None:
        self._checker, self._replayer, self._canary, self._settings = checker, replayer, canary, settings

    def check(
        self, engine: Engine, policy: Policy, shipment: Shipment, delivery: Delivery, declared: Declared, step: int
    ) -> CheckOutcome | None:
        """Checks a step right after its sync; `None` where the schedule leaves it out.

        The trainer's values are computed here and kept for the forwards that need them, so their time is not counted.

        Raises:
            EngineDiedError: If the engine ends or hangs.
        """
        policy.values()
        began = time.perf_counter()
        self._replayer.take(policy)
        trainer = describe_trainer(policy, shipment.version)
        if not self._checker.is_due(step):
            self._checker.skip(step, trained_weights(trainer), {**shipment.experts, **shipment.dense})
            return None
        state = engine.export_state()
        transport = self._check_transport(engine, delivery, step)
        bits = begin_canary(engine, self._canary)
        sides = gather_sides(trainer, shipment, state, declared.placement)
        self._replayer.replay(Hypothesis(execution=declared.execution))
        canary = self._replayer.canary_run(bits(), declared.execution)
        outcome = self._checker.check(step, sides, canary=canary, transport=transport)
        return replace(outcome, seconds=time.perf_counter() - began)

    def _check_transport(self, engine: Engine, delivery: Delivery, step: int) -> TransportCheck | None:
        """Overwrites the engine's weights with noise and delivers again; the engine ends as it was before."""
        every = self._settings.transport_every
        if not every or step % every:
            return None
        engine.snapshot()
        count = engine.randomise(step)
        deliver(engine, delivery)
        return TransportCheck(num_randomised=count, not_restored=engine.compare())

    def floor_is_due(self, step: int) -> bool:
        """Tells whether the floor is measured at a step."""
        every = self._settings.floor_every
        return bool(every) and step % every == 0

    @torch.no_grad()
    def measure(
        self, policy: Policy, declared: Declared, before: Sequence[Sample], after: Sequence[Sample], step: int
    ) -> Gaps:
        """Measures the gaps of what was written between two states of the samples, under unchanged weights."""
        began = time.perf_counter()
        reported_M = new_logprobs(before, after)
        if not len(reported_M):
            return Gaps(natural=None, forced=None, floor=None, seconds=time.perf_counter() - began)
        recomputed_M = torch.tensor(
            [p for old, new in zip(before, after, strict=True) for p in new.recomputed[len(old.recomputed) :]],
            dtype=torch.float64,
        )
        forced = floor = None
        if self.floor_is_due(step):
            scores = score_answers(policy, after, self._settings, Replay.IDS_AND_WEIGHTS)
            forced_M = torch.cat([s[len(old.written) :] for old, s in zip(before, scores, strict=True)])
            replayed = replay_rollouts(
                policy, forced_requests(before, after), self._settings.sampling, declared.execution
            )
            replayed_M = torch.tensor([p for c in replayed for p in c.logprobs], dtype=torch.float64)
            forced = measure_gap(reported_M, forced_M)
            floor = measure_gap(replayed_M, recomputed_M)
        natural = measure_gap(reported_M, recomputed_M)
        return Gaps(natural=natural, forced=forced, floor=floor, seconds=time.perf_counter() - began)


def describe_trainer(policy: Policy, version: int) -> Trainer:
    """Returns what the trainer knows of its weights."""
    return Trainer(
        values=policy.values(),
        schemes=policy.schemes(),
        exported=policy.exported(),
        masters=policy.expert_masters(),
        dense=policy.dense(),
        version=version,
    )
