"""The page of the recipe library lists every recipe and says in how many seeds a reduction is proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recipes.cells import repair_names, run_cell
from benchmarks.recipes.table import render_page
from quantaudit.core.recipe_file import recipe_names
from tests.reporting.test_recipe_run import sample_run


def test_the_page_lists_every_recipe_and_shows_seeds_apart() -> None:
    run = sample_run()
    page = render_page({"mine": [run, run.model_copy(update={"seed": 1})]}, probes_per_family=300, work="W")
    assert all(f"| `{name}` |" in page for name in recipe_names())
    row = next(line for line in page.splitlines() if line.startswith("| `mine` |"))
    assert "REJECT / REJECT / ADMIT" in row
    assert "proved in 0 of 2" in row and "proved in 2 of 2" in row
    assert "| task[facts] | +0.0300 [+0.0100, +0.0500] fail |" in page


def test_seeds_that_disagree_are_not_averaged_to_a_verdict() -> None:
    run = sample_run()
    arms = tuple(a.model_copy(update={"verdict": "ADMIT"}) for a in run.arms)
    page = render_page({"mine": [run, run.model_copy(update={"arms": arms})]}, probes_per_family=300, work="W")
    assert "ADMIT or REJECT / ADMIT or REJECT / ADMIT" in page


def test_a_cell_that_is_there_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.recipes.cells.carry_out_recipe", lambda order: pytest.fail("it ran"))
    (tmp_path / "int3-qad-2.json").write_text(sample_run().to_json(), "utf-8")
    found = run_cell(tmp_path, "int3-qad", 2, probes_per_family=300, threads=1)
    assert found == sample_run()
    assert "int3-qad" in repair_names()
