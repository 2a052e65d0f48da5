"""What the check of a step costs beside the step, and how it grows with the weights that are looked at.

    python benchmarks/speed/check.py [--rounds 5] [-o benchmarks/results/speed_check.json]

1. The share of an ordinary step: the embedded model, the recipe's own batch, one thread a process. Rollout engine and
   trainer are two processes that run the canary at the same time, so wall time needs two free cores, and processor time
   of both together is given beside it. What a check only brings forward (the trainer's quantized values, the engine's
   decoded ones) is done before it is timed. Shares are of the step without its check. A step of reinforcement learning
   packs its weights for the engine; one of quantization-aware training packs them for the check alone, which is why
   packing is counted there and not here.
2. Processor time over quantized bytes: the same model with 1, 2, 4 and 8 times the experts, random weights, all in one
   process. The slope is that of log time over log bytes; the canary does not grow, so the sides alone are given too.
3. `hooks.StepAuditor.on_step` on the same weights, with leaves kept and without.

Everything takes turns, and medians (for growth the least) are compared. Predictions, made before the first run of this
file, are printed first.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.stopwatch import Cost, Stopwatch
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.recipe_run import Arm
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.opening import open_realization
from quantaudit.engines.stored import StoredTensor
from quantaudit.hooks import StepAuditor
from quantaudit.model.initialize import initialize
from quantaudit.model.lm import LanguageModel
from quantaudit.probes.world import build_world
from quantaudit.training.checked_qat import export_sides
from quantaudit.training.checking.canary import Hypothesis
from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.fingerprints import compare_sides
from quantaudit.training.checking.gathering import gather_sides
from quantaudit.training.fake_quantize import FakeQuantizedGroupedLinear, quantized_layers
from quantaudit.training.qat import QatTrainer
from quantaudit.training.repair import prepare_arm, repair_of, teacher_of
from quantaudit.training.rl.checks import LoopChecks, describe_trainer
from quantaudit.training.rl.decoding import Request, Want
from quantaudit.training.rl.engine import Engine, RolloutEngine
from quantaudit.training.rl.engine_client import EngineClient
from quantaudit.training.rl.faults import Flush, NoFaults
from quantaudit.training.rl.loop import Loop, sync, take_step
from quantaudit.training.rl.placement import deal_experts
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.replay import Replayer, canary_requests, run_canary
from quantaudit.training.rl.run_folder import Progress
from quantaudit.training.rl.sampling import GREEDY
from quantaudit.training.rl.settings import RlSettings
from quantaudit.training.rl.sync import Declared

GOAL_SHARE = 0.03
GOAL_SLOPE = 1.1  # of a time that is proportional to bytes, with what caches do to it
RL_RECIPE, QAT_RECIPE = "k3-w4a8", "k3-mxfp4-w4a8-qat"
TIMES = (1, 2, 4, 8)
PREDICTED = {
    "rl, wall": 0.027,
    "rl, processor": 0.037,
    "rl with floor and transport, processor": 0.10,
    "qat, comparing": 0.04,
    "qat, packing and comparing": 0.13,
    "slope of the sides": 0.97,
    "slope of the whole check": 0.7,
}
_ALL = slice(None)


class Share(Frozen):
    """What a check costs beside its step.

    Attributes:
        step: A step without its check.
        check: Its check.
        wall: Share in wall time.
        processor: Share in processor time.
        is_met: Whether the wall time keeps the goal.
        parts: What the check is made of; the canary's two parts overlap.
    """

    step: Cost
    check: Cost
    wall: float
    processor: float
    goal: float = GOAL_SHARE
    is_met: bool
    parts: dict[str, Cost]


class Growth(Frozen):
    """Least processor seconds by size, and the slope of its logarithm over that of the bytes."""

    seconds: tuple[float, ...]
    slope: float


class Results(Frozen):
    """A whole run with the machine it ran on.

    Attributes:
        rl: An ordinary step of `simulate rl`.
        rl_extras: What a floor adds to its step, and a check of the transport.
        rl_with_extras: Share in processor time, the extras spread over the steps between them.
        qat: A step of `simulate qat`.
        quantized_bytes: Codes and scales of the models that growth is measured on.
        growth: The sides, the whole check, and the auditor with leaves and without.
        is_linear: Whether the sides grow no faster than bytes.
    """

    schema_version: int = 1
    predicted: dict[str, float]
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    rl: Share
    rl_extras: dict[str, Cost]
    rl_with_extras: float
    qat: Share
    quantized_bytes: tuple[int, ...]
    growth: dict[str, Growth]
    is_linear: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """A loop, and a second check of it that is timed by itself."""

    loop: Loop
    replayer: Replayer
    canary: list[Request]

    def check(self, step: int, **settings: int) -> Callable[[], object]:
        """Syncs, does what a check would only bring forward, and returns a check that has not been run yet."""
        loop = self.loop
        shipment, delivery = sync(loop, step, step)
        loop.policy.values()
        loop.engine.generate([Request(key="", tokens=(1,), max_new=1)], GREEDY, Want())
        chosen = loop.settings.model_copy(update={"transport_every": 0, "floor_every": 0} | settings)
        checks = LoopChecks(StepChecker(), self.replayer, self.canary, chosen)
        return partial(checks.check, loop.engine, loop.policy, shipment, delivery, loop.declared, step)

    def time_parts(self, watch: Stopwatch, step: int) -> None:
        """Times what the check is made of, one after the other."""
        loop = self.loop
        policy, engine = loop.policy, loop.engine
        shipment, _ = sync(loop, step, step)
        watch.time("keep the weights for replays", lambda: self.replayer.take(policy))
        trainer = watch.time("describe the trainer", lambda: describe_trainer(policy, step))
        state = watch.time("read the engine", engine.export_state)
        sides = watch.time("undo its layout", lambda: gather_sides(trainer, shipment, state, loop.declared.placement))
        watch.time("compare and fingerprint", lambda: compare_sides(sides, _ALL))
        engine.generate([Request(key="", tokens=(1,), max_new=1)], GREEDY, Want())
        watch.time("canary in the engine", lambda: run_canary(engine, self.canary))
        declared = Hypothesis(execution=loop.declared.execution)
        watch.time("canary in the trainer", lambda: self.replayer.replay(declared))


def make_bench(model: LanguageModel, open_engine: Callable[[], Engine]) -> Bench:
    """Returns a loop with the defaults, but for what is not done in every step."""
    settings = RlSettings(held_out=0, floor_every=0, transport_every=0)
    world = build_world()
    policy = Policy(model, load_recipe(RL_RECIPE), settings)
    canary = canary_requests(world)
    replayer = Replayer(model.config, canary)
    placement = deal_experts(model.config.num_experts, settings.num_shards)
    loop = Loop(
        engine=open_engine(),
        policy=policy,
        world=world,
        settings=settings,
        declared=Declared(placement=placement, execution=policy.declared_execution()),
        faults=NoFaults(),
        checks=LoopChecks(StepChecker(), replayer, canary, settings),
    )
    return Bench(loop=loop, replayer=replayer, canary=canary)


def measure_rl(rounds: int) -> tuple[Share, dict[str, Cost]]:
    """Times ordinary steps, their checks by themselves, and one step with a floor."""
    model = load_model(open_checkpoint(embedded_model_folder()))
    engine = EngineClient(model.config, timeout_seconds=120.0)
    bench, watch = make_bench(model, lambda: engine), Stopwatch(engine.pid)
    progress = Progress.at_start()
    try:
        for n in range(rounds + 1):
            watch.time("step", lambda: take_step(bench.loop, progress))
            watch.time("check", bench.check(n))
            bench.time_parts(watch, n)
            watch.time("check with transport", bench.check(n, transport_every=1))
        floor = bench.loop.settings.model_copy(update={"floor_every": 1})
        checks = LoopChecks(StepChecker(), bench.replayer, bench.canary, floor)
        with_floor = replace(bench.loop, settings=floor, checks=checks)
        watch.time("step with floor", lambda: take_step(with_floor, progress))
    finally:
        engine.close()
    extras = {
        "floor": _less(watch.cost("step with floor"), watch.cost("step")),
        "transport": _less(watch.cost("check with transport"), watch.cost("check")),
    }
    others = ("step", "check", "check with transport", "step with floor")
    parts = {name: watch.cost(name) for name in watch.spent if name not in others}
    check = watch.cost("check")
    return _share(_less(watch.cost("step"), check), check, parts), extras


def measure_qat(rounds: int) -> Share:
    """Times steps of quantization-aware training, and their checks."""
    hi = open_realization(open_checkpoint(embedded_model_folder()), torch.device("cpu"))
    recipe = load_recipe(QAT_RECIPE)
    repair = repair_of(recipe)
    trainer = QatTrainer(prepare_arm(hi, recipe, Arm.AFTER), teacher_of(hi, repair), repair)
    checker, watch = StepChecker(), Stopwatch()
    for n in range(rounds + 1):
        watch.time("step alone", trainer.take_step)
        layers = quantized_layers(trainer.model).values()
        watch.time("values", partial(_quantize, layers))
        sides = watch.time("pack", partial(export_sides, trainer, NoFaults(), n))
        watch.time("compare and fingerprint", partial(checker.check, n, sides))
    step, values = watch.cost("step alone"), watch.cost("values")
    pack, compare = watch.cost("pack"), watch.cost("compare and fingerprint")
    return _share(_sum(step, values), _sum(pack, compare), {"pack": pack, "compare and fingerprint": compare})


def _quantize(layers: Iterable[FakeQuantizedGroupedLinear]) -> None:
    """Computes the values that the next forward multiplies with."""
    for layer in layers:
        layer.quantized()


def _share(step: Cost, check: Cost, parts: dict[str, Cost]) -> Share:
    wall, processor = check.wall / step.wall, check.processor / step.processor
    return Share(step=step, check=check, wall=wall, processor=processor, is_met=wall <= GOAL_SHARE, parts=parts)


def _sum(a: Cost, b: Cost) -> Cost:
    return Cost(wall=a.wall + b.wall, processor=a.processor + b.processor)


def _less(a: Cost, b: Cost) -> Cost:
    return Cost(wall=a.wall - b.wall, processor=a.processor - b.processor)


class _Sized(NamedTuple):
    """A model of some size, synced, with what is timed on it."""

    num_bytes: int
    actions: Mapping[str, Callable[[], object]]


def measure_growth(rounds: int) -> tuple[tuple[int, ...], dict[str, Growth]]:
    """Times checks of models of growing size, in turn; returns their bytes, and the growth by what was timed."""
    sized = [_make_sized(times) for times in TIMES]
    num_bytes = tuple(one.num_bytes for one in sized)
    watches = [Stopwatch() for _ in sized]
    for _ in range(rounds + 1):
        for one, watch in zip(sized, watches, strict=True):
            for name, action in one.actions.items():
                watch.time(name, action)
    growth = {}
    for name in sized[0].actions:
        seconds = tuple(min(spent.processor for spent in watch.spent[name]) for watch in watches)
        slope = float(np.polyfit(np.log(num_bytes), np.log(seconds), 1)[0])
        growth[name] = Growth(seconds=seconds, slope=slope)
    return num_bytes, growth


def _make_sized(times: int) -> _Sized:
    config = load_model(open_checkpoint(embedded_model_folder())).config
    model = LanguageModel(replace(config, num_experts=times * config.num_experts))
    initialize(model, 0)
    bench = make_bench(model, lambda: RolloutEngine(model.config))
    loop = bench.loop
    shipment, delivery = sync(loop, 0, 0)
    state, trainer = loop.engine.export_state(), describe_trainer(loop.policy, 0)
    values = loop.policy.values()
    served = {name: value.clone() for name, value in values.items()}
    auditors = {"auditor, leaves kept": StepAuditor(), "auditor": StepAuditor(remember=0)}

    def look() -> None:
        compare_sides(gather_sides(trainer, shipment, state, loop.declared.placement), _ALL)

    def check() -> None:
        loop.engine.flush_cache(Flush())
        bench.loop.checks.check(loop.engine, loop.policy, shipment, delivery, loop.declared, next(steps))

    def audit(auditor: StepAuditor) -> None:
        auditor.on_step(next(steps), values, served)

    steps = count()
    stored = [weight for weight in shipment.experts.values() if isinstance(weight, StoredTensor)]
    return _Sized(
        num_bytes=sum(weight.payload_bits() for weight in stored) // 8,
        actions={"sides": look, "whole check": check}
        | {name: partial(audit, auditor) for name, auditor in auditors.items()},
    )


def run(rounds: int) -> Results:
    """Measures everything on one thread."""
    torch.set_num_threads(1)
    load = os.getloadavg()
    rl, extras = measure_rl(rounds)
    settings = RlSettings()
    a_step = extras["floor"].processor / settings.floor_every + extras["transport"].processor / settings.transport_every
    qat = measure_qat(rounds)
    num_bytes, growth = measure_growth(rounds)
    return Results(
        predicted=PREDICTED,
        rounds=rounds,
        load=load,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        rl=rl,
        rl_extras=extras,
        rl_with_extras=rl.processor + a_step / rl.step.processor,
        qat=qat,
        quantized_bytes=num_bytes,
        growth=growth,
        is_linear=growth["sides"].slope <= GOAL_SLOPE,
    )


def describe(results: Results) -> list[str]:
    """Returns the figures in lines."""
    lines = [f"load {results.load[0]:.1f}, one thread a process, {results.machine}, torch {results.torch_version}"]
    for name, share in (("rl", results.rl), ("qat", results.qat)):
        met = "met" if share.is_met else "MISSED"
        lines.append(
            f"{name}: step {1e3 * share.step.wall:.0f} ms + check {1e3 * share.check.wall:.0f} ms, {share.wall:.1%} "
            f"of it in wall time (goal {GOAL_SHARE:.0%}, {met}), {share.processor:.1%} in processor time"
        )
        parts = share.parts.items()
        lines += [f"    {part:30} {1e3 * c.wall:8.1f} ms, processor {1e3 * c.processor:8.1f} ms" for part, c in parts]
    floor, transport = (1e3 * results.rl_extras[name].processor for name in ("floor", "transport"))
    lines.append(
        f"rl with a floor ({floor:.0f} ms) and a check of the transport ({transport:.0f} ms) as often as by default: "
        f"{results.rl_with_extras:.1%} of processor time"
    )
    lines.append("bytes " + " ".join(f"{size:11,}" for size in results.quantized_bytes))
    for name, growth in results.growth.items():
        seconds = " ".join(f"{1e3 * s:8.1f} ms" for s in growth.seconds)
        lines.append(f"{name:20} {seconds}  slope {growth.slope:.2f}")
    lines.append(f"the sides grow {'no faster' if results.is_linear else 'FASTER'} than bytes (goal {GOAL_SLOPE:g})")
    return lines


def main() -> None:
    """Prints the predictions, measures, prints the figures and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="below 3 is a trial, and nothing is written")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/speed_check.json"))
    given = parser.parse_args()
    print("predicted: " + ", ".join(f"{name} {value:g}" for name, value in PREDICTED.items()), flush=True)
    results = run(given.rounds)
    print("\n".join(describe(results)))
    if given.rounds < 3:
        print("a trial: fewer than 3 rounds, so nothing was written")
        return
    write_atomically(given.output, results.to_json().encode())


if __name__ == "__main__":
    main()
