"""The loop: sync, check, write answers, learn; one step after the other, and every step in the log.

    1  export the masters, pack them, and bring the engine to this version
    2  check that all sides hold the same values and that the engine computes as it declares
    3  write answers; recompute their log-probabilities; measure the gap
    4  learn from the groups that are due; the version goes up

A step changes nothing that a state on disk would hold before its answers are all there, so an engine that dies in it
leaves the run at the start of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from quantaudit.core.step_log import Finding, StepRecord
from quantaudit.probes.world import World
from quantaudit.training.checking.checker import CheckOutcome
from quantaudit.training.rl.checks import Gaps, LoopChecks
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.faults import Faults
from quantaudit.training.rl.learning import Learned, drop_even_groups, learn, recompute
from quantaudit.training.rl.policy import Policy, pack_experts
from quantaudit.training.rl.rollouts import open_samples, write_answers
from quantaudit.training.rl.run_folder import Progress, group_samples
from quantaudit.training.rl.samples import Sample, draw_tasks, reward_of
from quantaudit.training.rl.settings import Replay, RlSettings
from quantaudit.training.rl.sync import Declared, Delivery, QuantizeAt, Shipment, deliver, plan_delivery


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loop:
    """What a run is made of.

    Attributes:
        engine: The rollout engine.
        policy: The trainer.
        world: Where tasks are drawn from.
        settings: The settings.
        declared: What trainer and engine have agreed upon.
        faults: What is planted.
        checks: The check of every step.
        after_answers: Called with the step once its answers are written, while the engine still serves their version.
    """

    engine: Engine
    policy: Policy
    world: World
    settings: RlSettings
    declared: Declared
    faults: Faults
    checks: LoopChecks
    after_answers: Callable[[int], None] = lambda step: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step left for the log."""

    record: StepRecord
    findings: tuple[Finding, ...]
    learned: Learned | None


def make_shipment(loop: Loop, version: int, step: int) -> Shipment:
    """Returns what this sync sends, after whatever is planted on the trainer's side."""
    policy, faults, settings = loop.policy, loop.faults, loop.settings
    exported = faults.masters(step, policy.exported(), policy.expert_masters())
    schemes = faults.layer_set(step, policy.schemes())
    packed = pack_experts(exported, schemes, settings.quantize_at)
    is_arrival = settings.quantize_at is QuantizeAt.ARRIVAL
    return Shipment(
        version=version,
        experts=packed if is_arrival else faults.export(step, packed, exported),
        arriving={n: s for n, s in schemes.items() if s is not None} if is_arrival else {},
        dense=policy.dense(),
    )


def sync(loop: Loop, version: int, step: int) -> tuple[Shipment, Delivery]:
    """Brings the engine to a version.

    Raises:
        EngineDiedError: If the engine ends or hangs.
    """
    if loop.engine.is_asleep:
        loop.engine.wake()
    shipment = make_shipment(loop, version, step)
    delivery = plan_delivery(shipment, loop.declared, loop.faults, step, bucket_bytes=loop.settings.bucket_bytes)
    deliver(loop.engine, delivery)
    return shipment, delivery


def take_step(loop: Loop, progress: Progress) -> Step:
    """Takes one step and moves `progress` on.

    Raises:
        EngineDiedError: If the engine ends or hangs; `progress` and the trainer stay at the start of the step.
        DivergedError: If the loss is not finite; the trainer's weights stay, `progress` is no longer good.
    """
    began = time.perf_counter()
    step, settings = progress.step, loop.settings
    shipment, delivery = sync(loop, progress.version, step)
    outcome = loop.checks.check(loop.engine, loop.policy, shipment, delivery, loop.declared, step)
    tasks = draw_tasks(loop.world, settings.shares, settings.prompts_per_step, settings.seed, step)
    before = [s for s in progress.open_samples if not s.is_finished] + open_samples(tasks, settings)
    with_routing = settings.replay is not Replay.NONE or loop.checks.floor_is_due(step)
    after = write_answers(loop.engine, before, settings, progress.version, with_routing=with_routing)
    loop.after_answers(step)
    if settings.sleeps:
        loop.engine.sleep()
    after = recompute(loop.policy, before, after, settings)
    gaps = loop.checks.measure(loop.policy, loop.declared, before, after, step)
    if settings.replay is Replay.NONE:
        after = [replace(sample, routing=None) for sample in after]
    due = _sort_out(progress, after, step, settings.lag)
    due = drop_even_groups(due, settings) if settings.drops_even_groups else due
    learned = learn(loop.policy, due, settings, progress.version) if due else None
    rewards = [reward_of(sample, settings.reward) for sample in after if sample.is_finished]
    record = _record(step, progress, outcome, gaps, learned, rewards)
    progress.version += learned is not None
    progress.step += 1
    record = record.model_copy(update={"seconds": time.perf_counter() - began})
    return Step(record=record, findings=() if outcome is None else outcome.findings, learned=learned)


def _sort_out(progress: Progress, after: list[Sample], step: int, lag: int) -> list[Sample]:
    """Moves answers on: unfinished groups stay open, finished ones wait for the lag, and what is due is returned."""
    groups = group_samples([s for s in progress.open_samples if s.is_finished] + after)
    whole = [group for group in groups if all(sample.is_finished for sample in group)]
    progress.open_samples = [s for group in groups if group not in whole for s in group]
    if whole:
        progress.waiting.append((step, [sample for group in whole for sample in group]))
    due = [s for since, group in progress.waiting if since <= step - lag for s in group]
    progress.waiting = [(since, group) for since, group in progress.waiting if since > step - lag]
    return due


def _record(
    step: int,
    progress: Progress,
    outcome: CheckOutcome | None,
    gaps: Gaps,
    learned: Learned | None,
    rewards: list[float],
) -> StepRecord:
    record = StepRecord(
        step=step,
        loss=None if learned is None else learned.loss,
        reward=sum(rewards) / len(rewards) if rewards else None,
        kl=None if learned is None else learned.kl,
        weight_version=progress.version,
        gap=gaps.natural,
        forced_gap=gaps.forced,
        floor=gaps.floor,
        check_seconds=gaps.seconds + (0.0 if outcome is None else outcome.seconds),
    )
    if outcome is None:
        return record
    return record.model_copy(
        update={
            "checks": outcome.checks,
            "layer_set": outcome.layer_set,
            "num_quantized": outcome.num_quantized,
            "canary": outcome.canary,
            "transport": outcome.transport,
            "staleness": outcome.staleness,
        }
    )
