"""Time and memory of whole audits: the default run, `--help`, the lo forward against the hi forward, and peak memory.

    python benchmarks/speed/audit.py [--threads 2] [--rounds 30] [--runs 1] [-o benchmarks/results/audit.json]

Predictions are printed before anything is measured. Forwards of hi and of lo under a weight-only recipe alternate on
the same batches, and the minima over the rounds are compared, so that whatever else the machine does hits both alike.
Memory is that of fresh processes on a random model whose experts dwarf everything else: hi alone with two forwards,
then hi and lo with two each, lo made by the recipe and lo read from a packed checkpoint. `--runs 0` leaves out the
default run, which takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.composition import open_checkpoint
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization, open_served
from quantaudit.engines.realization import Realization, apply_recipe
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.model.config import ModelConfig
from quantaudit.model.lm import LanguageModel
from quantaudit.numerics import get_scheme
from quantaudit.probes.world import default_probes
from quantaudit.training.embedded import EMBEDDED_CONFIG

RECIPE = "k3-w4a16"
SCHEME = "mxfp4-even"
CPU = torch.device("cpu")
MEMORY_LAYERS, MEMORY_EXPERTS, MEMORY_WIDTH = 4, 64, 256

PREDICTIONS = {
    "default run, seconds on two idle cores": 60.0,
    "--help, seconds": 0.15,
    "lo forward / hi forward": 1.15,
    "peak of hi and lo / bound, lo by recipe": 0.95,
    "peak of hi and lo / bound, lo by path": 1.3,
}
GOALS = {"default run, seconds": 90.0, "--help, seconds": 0.3, "lo forward / hi forward": 1.2, "peak / bound": 1.0}


class Forwards(Frozen):
    """Least times of the same batches through hi and through lo."""

    recipe: str
    rounds: int
    num_sequences: int
    hi_seconds: float
    lo_seconds: float
    ratio: float


class Memory(Frozen):
    """Peak resident bytes of fresh processes.

    Attributes:
        lo_by: "recipe" or "path".
        bound: Peak of hi alone, plus packed lo, plus the decoded experts of one layer in the compute dtype.
        ratio: Peak of both over the bound; at most 1 is the goal.
    """

    lo_by: str
    hi_alone: int
    both: int
    packed_lo: int
    decoded_layer: int
    bound: int
    ratio: float


class Results(Frozen):
    """A whole run with the machine it ran on."""

    schema_version: int = 1
    predictions: dict[str, float]
    goals: dict[str, float]
    threads: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    help_rounds: int
    help_seconds: float
    run_seconds: tuple[float, ...]
    run_peak_memory_mb: float | None
    forwards: Forwards
    memory: tuple[Memory, ...]


def time_help(rounds: int) -> float:
    """Returns the least wall time of `quantaudit --help` as a process, seconds."""
    return min(seconds_of_process(["--help"])[0] for _ in range(rounds))


def seconds_of_process(arguments: list[str]) -> tuple[float, float]:
    """Runs `quantaudit` and returns its wall time in seconds and the peak memory of all children so far in MB."""
    command = [sys.executable, "-c", "from quantaudit.cli.main import main; main()", *arguments]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def time_runs(count: int, threads: int) -> tuple[tuple[float, ...], float | None]:
    """Runs the default audit; returns its wall times and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        timed = [seconds_of_process(["run", "--threads", str(threads), "-o", folder]) for _ in range(count)]
    return tuple(seconds for seconds, _ in timed), (timed[-1][1] if timed else None)


def time_forwards(rounds: int, probes_a_family: int) -> Forwards:
    """Times hi and lo on the same batches, alternating."""
    hi = open_realization(open_checkpoint(embedded_model_folder()), CPU)
    engines = {"hi": NativeEngine(hi, CPU), "lo": NativeEngine(apply_recipe(hi, load_recipe(RECIPE)), CPU)}
    batches = plan_batches(default_probes(Split.SELECT, probes_a_family), 96)
    least = {name: seconds_of_pass(engine, batches) for name, engine in engines.items()}
    for _ in range(rounds - 1):
        for name, engine in engines.items():
            least[name] = min(least[name], seconds_of_pass(engine, batches))
    return Forwards(
        recipe=RECIPE,
        rounds=rounds,
        num_sequences=sum(len(batch.sequences) for batch in batches),
        hi_seconds=least["hi"],
        lo_seconds=least["lo"],
        ratio=least["lo"] / least["hi"],
    )


def seconds_of_pass(engine: NativeEngine, batches: list[Batch]) -> float:
    """Returns the wall time of all batches through one engine."""
    began = time.perf_counter()
    for batch in batches:
        engine.forward(batch.sequences)
    return time.perf_counter() - began


def measure_memory() -> tuple[Memory, ...]:
    """Writes a random model, whole and packed, and measures hi alone and hi with lo in fresh processes."""
    config = replace(
        EMBEDDED_CONFIG,
        num_hidden_layers=MEMORY_LAYERS + 1,
        num_experts=MEMORY_EXPERTS,
        moe_intermediate_size=MEMORY_WIDTH,
        routed_expert_hidden_size=MEMORY_WIDTH,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_random(folder / "hi", config, packed=False)
        write_random(folder / "lo", config, packed=True)
        alone = peak_of("hi", folder)
        return tuple(_against_bound(lo_by, alone, peak_of(lo_by, folder), config) for lo_by in ("recipe", "path"))


def _against_bound(lo_by: str, alone: int, both: int, config: ModelConfig) -> Memory:
    weights_of_layer = 3 * config.num_experts * config.moe_intermediate_size * config.routed_expert_hidden_size
    packed_lo = len(config.moe_layers()) * weights_of_layer * 17 // 32  # 4 bits a weight and 8 a group of 32
    decoded_layer = 4 * weights_of_layer  # fp32, the compute dtype of the recipe
    bound = alone + packed_lo + decoded_layer
    return Memory(
        lo_by=lo_by,
        hi_alone=alone,
        both=both,
        packed_lo=packed_lo,
        decoded_layer=decoded_layer,
        bound=bound,
        ratio=both / bound,
    )


def write_random(path: Path, config: ModelConfig, *, packed: bool) -> None:
    """Writes a random checkpoint; the same weights whether packed or not."""
    torch.manual_seed(0)
    model = LanguageModel(config)
    drawn = ((name, 0.02 * torch.randn(p.shape)) for name, p in model.named_parameters())
    scheme = get_scheme(SCHEME) if packed else None
    write_checkpoint(path, config, round_to_storage(drawn, config), scheme=scheme, shard_bytes=None)


def peak_of(what: str, folder: Path) -> int:
    """Returns the peak resident bytes of a fresh process that runs "hi", or hi and lo by "recipe" or "path"."""
    command = [sys.executable, __file__, "--peak-of", what, "--folder", str(folder), "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = json.loads(done.stdout)
    assert isinstance(peak, int)
    return peak


def open_and_run(what: str, folder: Path) -> int:
    """Opens and runs what was asked for in this process and returns its peak resident bytes."""
    batch = plan_batches(default_probes(Split.SELECT, {"copying": 8}), 8)
    hi = open_realization(open_checkpoint(folder / "hi"), CPU)
    lo = None if what == "hi" else _lo(what, hi, folder)
    # The allocator keeps some of what a forward freed, differently from run to run: both sides get as many forwards.
    for _ in range(2):
        seconds_of_pass(NativeEngine(hi, CPU), batch)
        if lo is not None:
            seconds_of_pass(NativeEngine(lo, CPU), batch)
    return peak_of_this_process()


def peak_of_this_process() -> int:
    """Returns the peak resident bytes since this process began; `getrusage` would start at those of its parent."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def _lo(what: str, hi: Realization, folder: Path) -> Realization:
    if what == "recipe":
        return apply_recipe(hi, load_recipe(RECIPE))
    return open_served(open_checkpoint(folder / "lo"), CPU)


def print_results(results: Results) -> None:
    """Prints each figure beside its prediction and its goal."""
    print(f"load {results.load[0]:.1f}, {results.threads} threads, {results.machine}, torch {results.torch_version}")
    print(f"--help: {results.help_seconds:.3f} s, least of {results.help_rounds} (goal 0.3)")
    if results.run_seconds:
        print(f"default run: {min(results.run_seconds):.1f} s (goal 90), peak {results.run_peak_memory_mb:,.0f} MB")
    forwards = results.forwards
    print(
        f"forward of {forwards.num_sequences} sequences: hi {forwards.hi_seconds:.3f} s, lo ({forwards.recipe}) "
        f"{forwards.lo_seconds:.3f} s, ratio {forwards.ratio:.3f}, least of {forwards.rounds} (goal 1.2)"
    )
    for memory in results.memory:
        print(
            f"peak, lo by {memory.lo_by}: {memory.both / 2**20:,.0f} MiB against {memory.bound / 2**20:,.0f} MiB = "
            f"hi alone {memory.hi_alone / 2**20:,.0f} + packed lo {memory.packed_lo / 2**20:,.0f} + a decoded layer "
            f"{memory.decoded_layer / 2**20:,.0f}: ratio {memory.ratio:.3f} (goal 1)"
        )


def measure(threads: int, rounds: int, runs: int, probes_a_family: int) -> Results:
    """Measures everything."""
    torch.set_num_threads(threads)
    load = os.getloadavg()
    run_seconds, run_peak = time_runs(runs, threads)
    return Results(
        predictions=PREDICTIONS,
        goals=GOALS,
        threads=threads,
        load=load,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        help_rounds=rounds,
        help_seconds=time_help(rounds),
        run_seconds=run_seconds,
        run_peak_memory_mb=run_peak,
        forwards=time_forwards(rounds, probes_a_family),
        memory=measure_memory(),
    )


def main() -> None:
    """Prints predictions, measures, prints the figures and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="of --help and of the forwards; below 20 is a trial")
    parser.add_argument("--runs", type=int, default=1, help="whole default runs")
    parser.add_argument("--probes", type=int, default=19, help="probes a family in the timed forwards")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/audit.json"))
    parser.add_argument("--peak-of", choices=("hi", "recipe", "path"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak_of is not None:
        torch.set_num_threads(given.threads)
        print(open_and_run(given.peak_of, given.folder))
        return
    print("predicted:", "; ".join(f"{what} {value:g}" for what, value in PREDICTIONS.items()), flush=True)
    results = measure(given.threads, given.rounds, given.runs, given.probes)
    print_results(results)
    if given.rounds < 20:
        print("a trial: fewer than 20 rounds, so nothing was written")
        return
    write_atomically(given.output, results.to_json().encode())


if __name__ == "__main__":
    main()
