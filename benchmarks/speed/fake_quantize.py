"""What fake quantization adds to a training step of the embedded model: the goal is 15 % at most.

    python benchmarks/speed/fake_quantize.py [--pairs N] [-o benchmarks/results/speed_fake_quantize.json]

A step of the control arm and one of the repaired arm take turns on the same items, on one thread, and are timed in
process CPU time; the share is the median over pairs, so that other work on the machine cancels out. The step is that
of the recipe with cross-entropy alone and AdamW: forwards of hi, or Muon, would hide the cost. Stated before the first
run of this file: 6 % for weights alone, 12 % with the inputs of both GEMMs.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from statistics import median

import torch

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.recipe import OptimizerKind, Recipe
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.recipe_run import Arm
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import Realization
from quantaudit.training.qat import QatTrainer
from quantaudit.training.repair import prepare_arm, repair_of

GOAL_SHARE = 0.15
RECIPES = ("k3-mxfp4-w4a16-qat", "k3-mxfp4-w4a8-qat", "int3-qad")
_WARM_UP = 2


class Row(Frozen):
    """One recipe: median CPU seconds of a step without and with fake quantization, and what it adds."""

    recipe: str
    items_per_step: int
    plain_seconds: float
    fake_seconds: float
    added_share: float
    goal: float = GOAL_SHARE


class Results(Frozen):
    """A whole run with the machine it ran on."""

    schema_version: int = 1
    pairs: int
    threads: int = 1
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    rows: tuple[Row, ...]


def measure(hi: Realization, name: str, pairs: int) -> Row:
    """Times pairs of steps of one recipe."""
    recipe = _bare(load_recipe(name))
    repair = repair_of(recipe)
    trainers = [QatTrainer(prepare_arm(hi, recipe, arm), None, repair) for arm in (Arm.CONTROL, Arm.AFTER)]
    timed = [tuple(_time_step(trainer) for trainer in trainers) for _ in range(pairs + _WARM_UP)][_WARM_UP:]
    row = Row(
        recipe=name,
        items_per_step=repair.items_per_step,
        plain_seconds=median(plain for plain, _ in timed),
        fake_seconds=median(fake for _, fake in timed),
        added_share=median(fake / plain - 1 for plain, fake in timed),
    )
    print(f"{name:22} {row.plain_seconds:.3f} s + {row.added_share:.1%}", flush=True)
    return row


def _bare(recipe: Recipe) -> Recipe:
    """Returns the recipe without what would hide the cost: forwards of hi, and Muon."""
    changes = {"cross_entropy": 1.0, "distillation": 0.0, "optimizer": OptimizerKind.ADAMW}
    return recipe.model_copy(update={"repair": repair_of(recipe).model_copy(update=changes)})


def _time_step(trainer: QatTrainer) -> float:
    began = time.process_time()
    trainer.take_step()
    return time.process_time() - began


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("-o", type=Path, default=Path("benchmarks/results/speed_fake_quantize.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()
    hi = open_realization(open_checkpoint(embedded_model_folder()), torch.device("cpu"))
    results = Results(
        pairs=arguments.pairs,
        load=load,
        machine=platform.processor() or platform.machine(),
        torch_version=torch.__version__,
        rows=tuple(measure(hi, name, arguments.pairs) for name in RECIPES),
    )
    write_atomically(arguments.o, results.to_json().encode())


if __name__ == "__main__":
    main()
