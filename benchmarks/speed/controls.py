"""What the controls of an audit cost beside the audit itself: the paired pass with them and without.

    python benchmarks/speed/controls.py [--threads 2] [--rounds 20] [-o reports/runs/speed_controls.json]

Without controls the pass is what `--controls cached` leaves of it: hi, lo, all observers and forced routing. With them
hi runs again for the floor and through the lo path for the identity, and faults are planted. Both run in turn on the
same batches, and the least times are compared, so that whatever else the machine does hits both alike. A prediction is
printed before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from functools import partial
from pathlib import Path

import torch

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import apply_recipe, pass_through
from quantaudit.evaluation.cache import controls_of
from quantaudit.evaluation.findings import assayed_observers
from quantaudit.evaluation.measure import Engines, measure
from quantaudit.evaluation.plan import plan_batches
from quantaudit.probes.world import default_probes

RECIPE = "k3-w4a8"
CPU = torch.device("cpu")
PREDICTED = (
    0.65  # hi once more beside hi and lo, less the share of forced routing, and an eighth of it for the identity
)
GOAL = 1.5


class Results(Frozen):
    """A whole run with the machine it ran on.

    Attributes:
        bare_seconds: Least wall time of the pass without controls.
        whole_seconds: Least wall time of the pass with all of them.
        ratio: What controls add, over the pass without them.
    """

    schema_version: int = 1
    recipe: str
    predicted: float
    goal: float
    threads: int
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    num_probes: int
    bare_seconds: float
    whole_seconds: float
    ratio: float


def run(threads: int, rounds: int, probes_a_family: int) -> Results:
    """Times both passes in turn."""
    torch.set_num_threads(threads)
    load = os.getloadavg()
    hi = open_realization(open_checkpoint(embedded_model_folder()), CPU)
    lo = apply_recipe(hi, load_recipe(RECIPE))
    engines = Engines(hi=NativeEngine(hi, CPU), lo=NativeEngine(lo, CPU), identity=NativeEngine(pass_through(hi), CPU))
    probes = default_probes(Split.SELECT, probes_a_family)
    whole = partial(
        measure,
        engines,
        plan_batches(probes, 96),
        num_experts=hi.model.config.num_experts,
        assayed=assayed_observers(load_contract("default")),
        advance=lambda count: None,
    )
    passes = {"bare": partial(whole, kept=controls_of(whole())), "whole": whole}
    least = dict.fromkeys(passes, float("inf"))
    for _ in range(rounds):
        for name, action in passes.items():
            began = time.perf_counter()
            action()
            least[name] = min(least[name], time.perf_counter() - began)
    return Results(
        recipe=RECIPE,
        predicted=PREDICTED,
        goal=GOAL,
        threads=threads,
        rounds=rounds,
        load=load,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        num_probes=len(probes.probes),
        bare_seconds=least["bare"],
        whole_seconds=least["whole"],
        ratio=least["whole"] / least["bare"] - 1,
    )


def main() -> None:
    """Prints the prediction, measures, prints the figures and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20, help="below 20 is a trial, and nothing is written")
    parser.add_argument("--probes", type=int, default=38, help="probes a family")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/runs/speed_controls.json"))
    given = parser.parse_args()
    print(f"predicted: controls add {PREDICTED:g} of the pass without them", flush=True)
    results = run(given.threads, given.rounds, given.probes)
    print(f"load {results.load[0]:.1f}, {results.threads} threads, {results.machine}, torch {results.torch_version}")
    print(
        f"{results.num_probes} probes: {results.bare_seconds:.2f} s without controls, {results.whole_seconds:.2f} s "
        f"with them: they add {results.ratio:.2f} of it (goal {GOAL:g}), least of {results.rounds}"
    )
    if given.rounds < 20:
        print("a trial: fewer than 20 rounds, so nothing was written")
        return
    write_atomically(given.output, results.to_json().encode())


if __name__ == "__main__":
    main()
