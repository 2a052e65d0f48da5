"""Cost of watching: the paired forwards with every observer, against the bare pair of forwards.

    python benchmarks/speed/observers.py [--threads 1] [--rounds 20] [-o benchmarks/results/speed_observers.json]

The prediction is printed before anything is measured. On every batch the bare pair (hi and lo, nothing observed) and
the observed pair (all sites kept, both scored, every per-probe observer, all sums, every token and route logged)
alternate, and the least times over the rounds are added up over the batches: whatever else the machine does hits both.
The observers' own time is measured beside it, and so is what it costs to keep the router's logits and gate weights.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from quantaudit.composition import open_checkpoint
from quantaudit.core.engine import Trace
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.core.site import Point
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import apply_recipe
from quantaudit.evaluation.details import Details
from quantaudit.evaluation.measure import pair_up
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.table import Table
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.scores import score_sequences
from quantaudit.observers.sums import POINTS, LayerSums
from quantaudit.probes.world import default_probes

RECIPE = "k3-w4a16"
CPU = torch.device("cpu")
WITHOUT_ROUTER = POINTS - {Point.ROUTER_LOGITS, Point.GATE_WEIGHTS}

# Stated before the first run of this file. A batch of 96 probes scores about 900 tokens over 288 bytes: some 40 passes
# over 260,000 fp64 numbers and 6 exponentials or logarithms of each, about 30 ms, and as much again for sums over
# layers, against 1.2 s for the two forwards.
PREDICTIONS = {"observed pair / bare pair": 1.06, "keeping the router's sites": 1.0}
GOAL = 1.3


class Results(Frozen):
    """A whole run with the machine it ran on.

    Attributes:
        bare_seconds: hi and lo, nothing observed.
        observed_seconds: hi and lo with every observer.
        ratio: Observed over bare.
        observer_seconds: The observers alone, on traces that are there already.
        router_sites_ratio: A forward of hi that keeps all sites over one without the router's logits and gate weights.
    """

    schema_version: int = 1
    recipe: str
    predictions: dict[str, float]
    goal: float
    threads: int
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    num_sequences: int
    num_observers: int
    bare_seconds: float
    observed_seconds: float
    ratio: float
    observer_seconds: float
    router_sites_ratio: float


@dataclass(slots=True, kw_only=True)
class Watch:
    """Everything that is fed from one pair of forwards."""

    table: Table = field(default_factory=Table)
    details: Details = field(default_factory=Details)
    sums: LayerSums

    def add(self, batch: Batch, hi: Trace, lo: Trace) -> None:
        """Feeds all observers, as an audit does."""
        pair = pair_up(batch, hi, lo, score_sequences(hi))
        self.table.add(batch, pair, PROBE_OBSERVERS.values())
        self.sums.add(hi, lo)
        self.details.add(batch, pair)


def run_bare(hi: NativeEngine, lo: NativeEngine, batch: Batch) -> None:
    """Runs both models and observes nothing."""
    hi.forward(batch.sequences)
    lo.forward(batch.sequences)


def run_observed(hi: NativeEngine, lo: NativeEngine, batch: Batch, num_experts: int) -> None:
    """Runs both models and feeds every observer."""
    pair = hi.forward(batch.sequences, observe=POINTS), lo.forward(batch.sequences, observe=POINTS)
    Watch(sums=LayerSums(num_experts=num_experts)).add(batch, *pair)


def measure(threads: int, rounds: int, probes_a_family: int) -> Results:
    """Times every action on every batch in turn; returns sums of least times."""
    torch.set_num_threads(threads)
    load = os.getloadavg()
    realization = open_realization(open_checkpoint(embedded_model_folder()), CPU)
    hi = NativeEngine(realization, CPU)
    lo = NativeEngine(apply_recipe(realization, load_recipe(RECIPE)), CPU)
    num_experts = realization.model.config.num_experts
    batches = plan_batches(default_probes(Split.SELECT, probes_a_family), 96)
    total: dict[str, float] = {}
    for batch in batches:
        traces = hi.forward(batch.sequences, observe=POINTS), lo.forward(batch.sequences, observe=POINTS)
        actions: dict[str, Callable[[], object]] = {
            "bare": partial(run_bare, hi, lo, batch),
            "observed": partial(run_observed, hi, lo, batch, num_experts),
            "watch": lambda b=batch, t=traces: Watch(sums=LayerSums(num_experts=num_experts)).add(b, *t),  # type: ignore[misc]
            "sites": partial(hi.forward, batch.sequences, observe=POINTS),
            "fewer sites": partial(hi.forward, batch.sequences, observe=WITHOUT_ROUTER),
        }
        for name, seconds in time_in_turn(actions, rounds).items():
            total[name] = total.get(name, 0.0) + seconds
    return Results(
        recipe=RECIPE,
        predictions=PREDICTIONS,
        goal=GOAL,
        threads=threads,
        rounds=rounds,
        load=load,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        num_sequences=sum(len(batch.sequences) for batch in batches),
        num_observers=len(PROBE_OBSERVERS),
        bare_seconds=total["bare"],
        observed_seconds=total["observed"],
        ratio=total["observed"] / total["bare"],
        observer_seconds=total["watch"],
        router_sites_ratio=total["sites"] / total["fewer sites"],
    )


def time_in_turn(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the least wall time of each action, all of them once a round."""
    least = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            least[name] = min(least[name], time.perf_counter() - began)
    return least


def main() -> None:
    """Prints the prediction, measures, prints the figures and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20, help="below 20 is a trial, and nothing is written")
    parser.add_argument("--probes", type=int, default=6, help="probes a family")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/speed_observers.json"))
    given = parser.parse_args()
    print("predicted:", "; ".join(f"{what} {value:g}" for what, value in PREDICTIONS.items()), flush=True)
    results = measure(given.threads, given.rounds, given.probes)
    print(f"load {results.load[0]:.1f}, {results.threads} threads, {results.machine}, torch {results.torch_version}")
    print(
        f"{results.num_sequences} sequences, {results.num_observers} observers and all sums: bare pair "
        f"{results.bare_seconds:.3f} s, observed pair {results.observed_seconds:.3f} s, ratio {results.ratio:.3f} "
        f"(goal {GOAL}); the observers alone {results.observer_seconds:.3f} s; keeping the router's sites "
        f"{results.router_sites_ratio:.3f}; least of {results.rounds}"
    )
    if given.rounds < 20:
        print("a trial: fewer than 20 rounds, so nothing was written")
        return
    write_atomically(given.output, results.to_json().encode())


if __name__ == "__main__":
    main()
