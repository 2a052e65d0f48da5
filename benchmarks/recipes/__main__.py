"""Runs the repairs of the library over several seeds and writes recipes/README.md.

`python -m benchmarks.recipes WORK` goes on with what is in WORK; `--page-only` writes the page from it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.recipes.cells import repair_names, run_cell
from benchmarks.recipes.table import render_page
from quantaudit.core.recipe_run import RecipeRun
from quantaudit.core.resources import recipes_folder
from quantaudit.core.serial import write_atomically


def main() -> None:
    """Runs the program from the command line."""
    parser = argparse.ArgumentParser(description="Measure every repair of the recipe library.")
    parser.add_argument("work", type=Path, help="folder of the results, one JSON file a cell; a stopped run goes on")
    parser.add_argument("--recipes", nargs="*", default=list(repair_names()), help="recipes to run; all repairs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--probes-per-family", type=int, default=300, help="probes of the audit split, at most")
    parser.add_argument("--threads", type=int, default=1, help="threads of the audits")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    cells = [(name, seed) for seed in range(args.seeds) for name in args.recipes]
    began = time.monotonic()
    for number, (name, seed) in enumerate([] if args.page_only else cells, start=1):
        run_cell(args.work, name, seed, probes_per_family=args.probes_per_family, threads=args.threads)
        minutes = (time.monotonic() - began) / 60
        print(f"{number} of {len(cells)} cells, {minutes:.0f} min: {name} seed {seed}", file=sys.stderr, flush=True)
    page = render_page(_gather(args.work, args.recipes), probes_per_family=args.probes_per_family, work=args.work.name)
    write_atomically(recipes_folder() / "README.md", page.encode())


def _gather(work: Path, names: list[str]) -> dict[str, list[RecipeRun]]:
    """Returns the results that are there, by recipe."""
    found = {
        name: [RecipeRun.from_json(p.read_text("utf-8")) for p in sorted(work.glob(f"{name}-[0-9]*.json"))]
        for name in names
    }
    return {name: runs for name, runs in found.items() if runs}


if __name__ == "__main__":
    main()
