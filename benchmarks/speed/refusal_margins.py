"""Time of refusal margins from several prefixes: each prompt read once for all, against every prefix on its own.

    python benchmarks/speed/refusal_margins.py [--threads 2] [--rounds 30] [-o JSON]

Both ways score the same prefixes behind the same prompts with the embedded model: `score_continuations` reads a prompt
once and goes on from copies of its cache; the other way is one teacher-forced forward of all prompts for each prefix.
The prediction is printed before anything is measured, the scores of both ways are compared, rounds alternate, and the
minima over the rounds are compared, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path

import torch

from quantaudit.composition import open_checkpoint
from quantaudit.core.batch import Sequence
from quantaudit.core.probe import Split
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.probes.tokenizer import BOS, encode
from quantaudit.probes.world import default_probes

# Prompts of 48 tokens and prefixes of 4 to 8 (6 on average): each prefix alone reads 8 x 54 = 432 tokens a prompt, the
# shared way 48 + 8 x 5 = 88, a fifth. The copies of the caches and the smaller second forward take some of that back.
PREDICTED_SPEEDUP = 4.0
GOAL_SPEEDUP = 3.0
PREFIXES = ("no i", "no i won", "never.", "i wont", "ok: a", "ok: the", "sure", "yes, it")
PROMPT_TOKENS = 48

Scores = list[tuple[float, ...]]


class Results(Frozen):
    """Both ways, with the machine they ran on.

    Attributes:
        shared_seconds: Least time with every prompt read once.
        alone_seconds: Least time with a forward for each prefix.
        speedup: alone / shared; larger is better.
        largest_difference: Between the scores of both ways, nats.
    """

    schema_version: int = 1
    predicted_speedup: float
    goal_speedup: float
    speedup: float
    shared_seconds: float
    alone_seconds: float
    largest_difference: float
    num_prompts: int
    prompt_tokens: int
    prefix_tokens: tuple[int, ...]
    rounds: int
    threads: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str


def draw_prompts(count: int) -> list[tuple[int, ...]]:
    """Returns prompts of 48 tokens: requests of the safety families, each led by as many others as fit."""
    probes = default_probes(Split.SELECT, {"wrapped": 120, "benign": 120}).probes
    texts = [" ".join((probes[(i + 1) % len(probes)].prompt, probe.prompt)) for i, probe in enumerate(probes)]
    long_enough = [t for t in texts if len(t) >= PROMPT_TOKENS - 1]
    return [(BOS, *encode(t[-(PROMPT_TOKENS - 1) :])) for t in long_enough[:count]]


def score_shared(engine: NativeEngine, prompts: list[tuple[int, ...]], prefixes: list[tuple[int, ...]]) -> Scores:
    """Returns the scores with every prompt read once."""
    return engine.score_continuations(prompts, [prefixes] * len(prompts))


def score_alone(engine: NativeEngine, prompts: list[tuple[int, ...]], prefixes: list[tuple[int, ...]]) -> Scores:
    """Returns the scores with one forward of all prompts for each prefix."""
    columns = []
    for prefix in prefixes:
        trace = engine.forward([Sequence(tokens=p + prefix, scored_from=len(p)) for p in prompts])
        logprob_MV = trace.logits_MV.double().log_softmax(-1)
        logprob_M = logprob_MV.gather(-1, trace.target_M.unsqueeze(-1)).squeeze(-1)
        ends = (0, *accumulate(trace.counts_B))
        columns.append([float(logprob_M[start:end].sum()) for start, end in pairwise(ends)])
    return list(zip(*columns, strict=True))


def least_seconds(ways: dict[str, Callable[[], Scores]], rounds: int) -> dict[str, float]:
    """Returns the least time of each way; rounds alternate."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            least[name] = min(least[name], time.perf_counter() - began)
    return least


def measure(threads: int, rounds: int, num_prompts: int) -> Results:
    """Measures both ways on the embedded model."""
    torch.set_num_threads(threads)
    load = os.getloadavg()
    device = torch.device("cpu")
    engine = NativeEngine(open_realization(open_checkpoint(embedded_model_folder()), device), device)
    prompts, prefixes = draw_prompts(num_prompts), [tuple(encode(text)) for text in PREFIXES]
    ways: dict[str, Callable[[], Scores]] = {
        "shared": lambda: score_shared(engine, prompts, prefixes),
        "alone": lambda: score_alone(engine, prompts, prefixes),
    }
    scores = {name: torch.tensor(way(), dtype=torch.float64) for name, way in ways.items()}
    least = least_seconds(ways, rounds)
    return Results(
        predicted_speedup=PREDICTED_SPEEDUP,
        goal_speedup=GOAL_SPEEDUP,
        speedup=least["alone"] / least["shared"],
        shared_seconds=least["shared"],
        alone_seconds=least["alone"],
        largest_difference=float((scores["alone"] - scores["shared"]).abs().max()),
        num_prompts=len(prompts),
        prompt_tokens=PROMPT_TOKENS,
        prefix_tokens=tuple(map(len, prefixes)),
        rounds=rounds,
        threads=threads,
        load=load,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
    )


def print_results(results: Results) -> None:
    """Prints the figures beside their prediction and goal."""
    print(f"load {results.load[0]:.1f}, {results.threads} threads, {results.machine}, torch {results.torch_version}")
    print(
        f"{len(results.prefix_tokens)} prefixes behind {results.num_prompts} prompts: shared "
        f"{results.shared_seconds:.3f} s, each alone {results.alone_seconds:.3f} s, least of {results.rounds}: "
        f"{results.speedup:.2f} times as fast (predicted {results.predicted_speedup:g}, goal "
        f"{results.goal_speedup:g}); scores differ by at most {results.largest_difference:.2g} nats"
    )


def main() -> None:
    """Prints the prediction, measures, prints the figures and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="of both ways; below 20 is a trial")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/speed_refusal_margins.json"))
    given = parser.parse_args()
    print(f"predicted: {PREDICTED_SPEEDUP:g} times as fast", flush=True)
    results = measure(given.threads, given.rounds, given.prompts)
    print_results(results)
    if given.rounds < 20:
        print("a trial: fewer than 20 rounds, so nothing was written")
        return
    write_atomically(given.output, results.to_json().encode())


if __name__ == "__main__":
    main()
