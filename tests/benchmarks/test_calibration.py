"""The calibration table: a few cells of every rule, a planted rule that it must flag, and the three files.

Numbers of samples are small here; the published table has thousands a cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.calibration.__main__ import main
from benchmarks.calibration.grid import SEED, Task, carry_out, tasks
from benchmarks.calibration.laws import BOUNDED_FLIPS, BOUNDED_LAWS, FLIP_LAWS, LAWS, draw_bounded, draw_flips
from benchmarks.calibration.layouts import Layout, Sizes, draw_clustered, layouts
from benchmarks.calibration.markdown import render_markdown
from benchmarks.calibration.page import place_dots, render_page
from benchmarks.calibration.simulate import simulate_means
from benchmarks.calibration.table import Calibration, Cell, RuleName, rate, summarize
from quantaudit.core.contract import Direction
from quantaudit.stats.clustered import MeanBounds, bound_mean
from quantaudit.stats.skewness import Reach
from quantaudit.stats.student import t_quantile

Values = NDArray[np.float64]
FIVE = Layout(num_probes=100, num_clusters=5, sizes=Sizes.EQUAL, icc=0.5)
DEFAULT = Layout(num_probes=300, num_clusters=36, sizes=Sizes.EQUAL, icc=0.1)


def naive(values_RN: Values, sizes_G: NDArray[np.int64]) -> MeanBounds:
    """Bounds a mean as one must not: normal quantile, no G/(G-1), no allowance for skewness, no least weight."""
    found = bound_mean(values_RN, sizes_G)
    num = len(sizes_G)
    plain = np.full(found.standard_error.shape, t_quantile(0.95, np.inf))
    return found._replace(
        standard_error=found.standard_error * np.sqrt((num - 1) / num),
        degrees_of_freedom=np.full(found.standard_error.shape, 1e9),
        reach=Reach(plain, plain, plain),
    )


def table_of(cells: tuple[Cell, ...]) -> Calibration:
    return Calibration(command="made by a test", seed=SEED, replicates=2, versions={}, alpha=0.05, cells=cells)


def test_a_rule_without_its_corrections_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    # the least weight of clusters is asked beside the rule, so it is lifted for the planted one
    monkeypatch.setattr("benchmarks.calibration.rules.has_weight", lambda df, num: np.ones(np.shape(df), dtype=bool))
    cells = tuple(simulate_means(np.random.default_rng(5), FIVE, 2000, "normal", LAWS["normal"], rule=naive))
    table = table_of(cells)
    assert table.too_liberal() == cells
    # 12 % for 5 clusters: normal quantile over t with 4 degrees of freedom and G/(G-1)
    assert cells[0].false_admit is not None and 0.09 < cells[0].false_admit.value < 0.16
    assert "2 cells are above" in summarize(table)
    assert "A rule admits too often" in render_page(table)


def test_the_rule_in_use_declines_there_and_decides_with_the_clusters_of_a_default_contract() -> None:
    for cell in simulate_means(np.random.default_rng(5), FIVE, 200, "normal", LAWS["normal"]):
        assert (cell.refused.value, cell.false_admit, cell.power) == (1.0, rate(0.0, 200), rate(0.0, 200))
    for cell in simulate_means(np.random.default_rng(5), DEFAULT, 1000, "normal", LAWS["normal"]):
        assert cell.power is not None and cell.power.value > 0.95
        assert cell.refused.value == 0.0 and not cell.is_too_liberal()


def some_tasks() -> Iterator[Task]:
    """Yields three simulations of every rule, spread over the grid."""
    everything = tasks()
    for rule in RuleName:
        chosen = [t for t in everything if t.rule is rule and t.layout.num_probes <= 300]
        yield from chosen[:: max(1, len(chosen) // 3)][:3]


def test_every_rule_runs_and_what_it_says_is_what_the_public_functions_say() -> None:
    # the simulations themselves compare with decide and run_sequentially, and fail where they disagree
    cells = [cell for task in some_tasks() for cell in carry_out(task, 40)]
    assert {cell.rule for cell in cells} == set(RuleName)
    assert {cell.direction for cell in cells} == {Direction.WORSE, Direction.BOTH, None}
    for cell in cells:
        if cell.power is not None and cell.inconclusive is not None and cell.false_reject_inside is not None:
            total = cell.power.value + cell.inconclusive.value + cell.false_reject_inside.value
            assert total == pytest.approx(1.0, abs=1e-12)


def test_a_cell_has_a_generator_of_its_own() -> None:
    task = next(iter(tasks()))
    assert carry_out(task, 50) == carry_out(task, 50)
    assert len({t.name for t in tasks()}) == len(tasks())


def test_the_grid_is_the_one_that_was_promised() -> None:
    found = layouts()
    assert {layout.num_probes for layout in found} == {30, 100, 300, 1000}
    assert {layout.icc for layout in found} == {0.0, 0.1, 0.5}
    assert min(layout.num_clusters for layout in found) == 5 and max(layout.num_clusters for layout in found) == 100
    for layout in found:
        sizes_G = layout.sizes_G()
        assert sizes_G.sum() == layout.num_probes == len(layout.names())
        assert len(sizes_G) == layout.num_clusters and sizes_G.min() >= 1
        is_even = sizes_G.max() - sizes_G.min() <= 1
        assert is_even == (layout.sizes is Sizes.EQUAL) or layout.num_probes < 3 * layout.num_clusters


@pytest.mark.parametrize("name", LAWS)
def test_laws_have_mean_zero_variance_one_and_the_correlation_asked_for(name: str) -> None:
    layout = Layout(num_probes=60, num_clusters=20, sizes=Sizes.EQUAL, icc=0.5)
    values = draw_clustered(np.random.default_rng(7), layout, 10_000, LAWS[name])
    # standard error of the mean: sqrt(.5 / 20 + .5 / 60) / sqrt(10,000) = .0018
    assert float(values.mean()) == pytest.approx(0.0, abs=0.008)
    if name in ("normal", "skewed to damage", "skewed to improvement"):
        assert float(values.var()) == pytest.approx(1.0, abs=0.03)
        assert float(np.mean(values[:, 0] * values[:, 1])) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", FLIP_LAWS)
@pytest.mark.parametrize("truth", [0.0, 0.02, 0.1])
def test_flips_have_the_difference_asked_for(name: str, truth: float) -> None:
    found = draw_flips(np.random.default_rng(11), DEFAULT, 2000, FLIP_LAWS[name], truth)
    # 36 clusters with correlation .1: a standard error of about .4 sqrt(1.7 / 300 / 2000) = .0007
    assert float(found.values.mean()) == pytest.approx(truth, abs=0.003)
    is_one_way = not FLIP_LAWS[name].is_two_way
    assert (found.values.min() == 0 or truth == 0) if is_one_way else found.values.min() == -1


@pytest.mark.parametrize("name", [*BOUNDED_LAWS, *BOUNDED_FLIPS])
def test_bounded_laws_keep_their_bound_and_their_mean(name: str) -> None:
    law = (BOUNDED_LAWS | BOUNDED_FLIPS)[name]
    for truth in (0.0, 0.2):
        values = draw_bounded(np.random.default_rng(13), DEFAULT, 2000, law, truth)
        assert float(np.abs(values).max()) <= 1
        assert float(values.mean()) == pytest.approx(truth, abs=0.006)


def test_one_command_writes_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replicates", "4", "--output", str(tmp_path), "--rule", "contrast"]) in (0, 1)
    assert "worst false ADMIT" in capsys.readouterr().out
    text = (tmp_path / "calibration.json").read_text("utf-8")
    table = Calibration.from_json(text)
    assert json.loads(text)["seed"] == SEED and table.versions["numpy"] == np.__version__
    assert '--replicates 4 --rule "contrast"' in table.command
    assert (tmp_path / "calibration.md").read_text("utf-8") == render_markdown(table)
    page = (tmp_path / "calibration.html").read_text("utf-8")
    assert page == render_page(table)
    assert len(page) < 300_000 and "<script" not in page and "http://" not in page and "https://" not in page


def test_one_sample_a_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--replicates", "1"])
    assert "at least 2 samples" in capsys.readouterr().err


def test_a_dot_stands_for_a_cell_and_is_marked_above_the_limit() -> None:
    cells = tuple(simulate_means(np.random.default_rng(5), DEFAULT, 400, "normal", LAWS["normal"]))
    liberal = cells[0].model_copy(update={"false_admit": rate(0.2, 400)})
    dots = place_dots((*cells, liberal), 0.05)
    assert len(dots.points) == 3
    assert [bad for _, _, bad in dots.points] == [False, False, True]
    assert max(x for x, _, _ in dots.points) == dots.ticks[-1][0]  # drawn at the end of the axis, not beyond it
