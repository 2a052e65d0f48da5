"""Runs one recipe with one seed on the embedded model; whatever lies in the work folder already is taken from there.

All cells share what depends on hi alone: what audits measure of it, control arms that train alike, and the audits of
round-to-nearest.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_contract, load_recipe, recipe_names
from quantaudit.core.recipe_run import RecipeRun
from quantaudit.core.resources import embedded_model_folder
from quantaudit.evaluation.subset import choose_probes
from quantaudit.probes.world import default_probes
from quantaudit.verbs.recipe import RecipeOrder, carry_out_recipe, with_seed

CONTRACT = "default"
_TELL_EVERY = 60.0  # seconds


def repair_names() -> tuple[str, ...]:
    """Lists the bundled recipes that train."""
    return tuple(name for name in recipe_names() if load_recipe(name).repair is not None)


def run_cell(work: Path, name: str, seed: int, *, probes_per_family: int, threads: int) -> RecipeRun:
    """Returns the result of a recipe with a seed.

    Args:
        work: The work folder.
        name: A bundled recipe.
        seed: Seed of its repair.
        probes_per_family: Probes of the audit split, at most.
        threads: Of audits.
    """
    kept = work / f"{name}-{seed}.json"
    if kept.exists():
        return RecipeRun.from_json(kept.read_text("utf-8"))
    contract = load_contract(CONTRACT).model_copy(update={"probes_per_family": probes_per_family})
    folder = work / "cells" / f"{name}-{seed}"
    order = RecipeOrder(
        recipe=with_seed(load_recipe(name), seed),
        checkpoint=open_checkpoint(embedded_model_folder()),
        hi_source="embedded model",
        contract=contract,
        probes=choose_probes(default_probes(Split.AUDIT), contract),
        folder=folder,
        shared=work / "shared",
        threads=threads,
        command=f"quantaudit recipe run {name} --seed {seed}",
        progress=_Teller(f"{name} seed {seed}"),
        formats=(),
    )
    found = carry_out_recipe(order)
    kept.write_text(found.to_json(), "utf-8")
    return found


class _Teller:
    """Prints a line a minute."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY:
            self._told = now
            print(f"  {self._what}: {stage} {done:,} of {total:,}", file=sys.stderr, flush=True)
