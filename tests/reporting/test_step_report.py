"""The report of a run: the first bad step comes first, what it did beside it, and nothing foreign breaks a view."""

from __future__ import annotations

import math
from html import unescape
from pathlib import Path

import pytest

from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.rl_run import HeldOut, RlResult
from quantaudit.core.step_log import (
    CanaryCheck,
    Event,
    Finding,
    FindingKind,
    GapNumbers,
    RunEnded,
    RunKind,
    RunStarted,
    RunStatus,
    RunVerdict,
    Side,
    SideCheck,
    StepRecord,
    TransportCheck,
)
from quantaudit.reporting.marks import Grid
from quantaudit.reporting.palette import LIGHT
from quantaudit.reporting.step_report import describe_rewards, headline, tell_story
from quantaudit.reporting.step_report_charts import build_run_charts, build_timeline, run_series
from quantaudit.reporting.step_report_console import render_run_console
from quantaudit.reporting.step_report_files import write_run_reports
from quantaudit.reporting.step_report_html import render_run_html
from quantaudit.reporting.step_report_markdown import render_run_markdown
from quantaudit.reporting.terminal import MAX_LINES

W1 = "layers.1.experts.w1"
HOSTILE = "<script>alert(1)</script>|`*_\u202e"


def gap(mean: float) -> GapNumbers:
    return GapNumbers(
        num_tokens=9, mean=mean, p50=0, p99=mean, max=mean, k1=0, k3=mean, ess=1, num_extreme=0, num_confident=0
    )


def step(number: int, *, is_bad: bool = False, is_checked: bool = True) -> StepRecord:
    checks = [SideCheck(side=side, num_tensors=1, num_checked=4, num_matrices=4, values="ab" * 16) for side in Side]
    if is_bad:
        checks[-1] = checks[-1].model_copy(update={"differing": (W1,)})
    return StepRecord(
        step=number,
        loss=1.0,
        reward=0.2 if is_bad else 0.5,
        kl=0.3 if is_bad else 0.1,
        checks=tuple(checks) if is_checked else (),
        gap=gap(0.5 if is_bad else 0.01),
        floor=gap(0.01) if number % 4 == 0 else None,
        canary=CanaryCheck(num_values=8, num_differing=0, max_difference=0, declared="fp32"),
        transport=TransportCheck(num_randomised=3) if number == 0 else None,
        seconds=2.0,
        check_seconds=0.05,
    )


def finding(number: int, *, latent: bool = False, name: str = "layout-not-rebuilt") -> Finding:
    return Finding(
        step=number,
        name=name,
        kind=FindingKind.STATE,
        code="K9",
        tensor=W1,
        num_tensors=2,
        expert=3,
        coordinate=(1, 2),
        num_differing=7,
        between=(Side.LOADED, Side.DERIVED),
        field="post_load.rebuild",
        train="the last update",
        serve="the update before",
        explains=1.0,
        sentence="The layout was not built again.",
        latent=latent,
    )


STARTED = RunStarted(run=RunKind.RL, recipe="k3-w4a8", inject=("layout-not-rebuilt@6",), arithmetic={"mxfp4": "d1"})
BAD: tuple[Event, ...] = (
    STARTED,
    *(step(n, is_bad=n >= 6) for n in range(10)),
    finding(3, latent=True, name="another-rule"),
    finding(6),
    RunEnded(status=RunStatus.COMPLETED, verdict=RunVerdict.MISMATCH, step=9),
)
CLEAN: tuple[Event, ...] = (STARTED, *(step(n) for n in range(3)))


def test_the_first_bad_step_is_the_first_that_changed_something() -> None:
    story = tell_story(BAD)
    assert story.first_bad == finding(6) and story.verdict is RunVerdict.MISMATCH
    assert headline(story) == f"Train and serve part at step 6: layout-not-rebuilt in {W1} and 1 more."


def test_what_it_did_is_the_means_before_and_from_there_on() -> None:
    changes = {change.name: (change.before, change.after) for change in tell_story(BAD).changes}
    assert changes["reward"] == pytest.approx((0.5, 0.2))
    assert changes["KL of the policy"] == pytest.approx((0.1, 0.3))
    assert changes["gap, mean"] == pytest.approx((0.01, 0.5))
    assert tell_story(BAD).check_share == pytest.approx(0.025)


def test_a_clean_run_says_so_and_a_partly_checked_one_does_not() -> None:
    assert tell_story(CLEAN).verdict is RunVerdict.CLEAN
    assert headline(tell_story(CLEAN)) == "Train and serve are bit-identical at every one of 3 steps."
    partly = (*CLEAN, step(3, is_checked=False))
    assert tell_story(partly).verdict is RunVerdict.UNCHECKED
    assert "1 of 4 steps were not" in headline(tell_story(partly))


def test_a_log_without_steps_is_not_measured() -> None:
    with pytest.raises(NotMeasuredError, match="no finished step"):
        tell_story([STARTED])


def test_a_loss_that_is_not_finite_is_in_no_mean() -> None:
    story = tell_story([STARTED, step(0), step(1).model_copy(update={"reward": math.nan})])
    assert story.changes[0].before == pytest.approx(0.5)


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_terminal_summary_is_short_and_in_ascii(width: int) -> None:
    many = (*BAD, *(finding(7 + n, name=f"other-{n}") for n in range(20)))
    text = render_run_console(many, width=width, color=False, location="run.html")
    assert text.isascii() and len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith("MISMATCH") and "......XXXX" in text and "20 more findings" in text


def test_the_timeline_shows_every_side_at_every_step() -> None:
    chart = build_timeline(tell_story((*BAD, step(10, is_checked=False))), LIGHT)
    (grid,) = [mark for mark in chart.marks if isinstance(mark, Grid)]
    fills = dict(grid.fills)
    assert (grid.num_rows, grid.num_columns) == (5, 11)  # sent, loaded, derived, canary, transport
    assert fills[LIGHT.failing] == tuple((2, n) for n in range(6, 10))
    assert {(0, 10), (1, 10), (2, 10), (4, 5)} <= set(grid.hollow)


def test_a_long_run_is_shown_in_as_many_cells_as_fit_and_no_bad_step_is_lost() -> None:
    steps = [step(n, is_bad=n == 777) for n in range(1000)]
    chart = build_timeline(tell_story([STARTED, *steps, finding(777)]), LIGHT)
    (grid,) = [mark for mark in chart.marks if isinstance(mark, Grid)]
    assert grid.num_columns <= 120 and len(dict(grid.fills)[LIGHT.failing]) == 1


def test_numbers_measured_once_have_no_chart() -> None:
    assert list(run_series(tell_story([STARTED, step(0)]))) == []
    names = [series.name for series in run_series(tell_story(BAD))]
    assert names == ["reward", "loss", "kl", "gap", "gap-p99", "ess"]
    assert len(build_run_charts(tell_story(BAD), LIGHT)) == 1 + len(names)


def hostile() -> tuple[Event, ...]:
    bad = finding(6).model_copy(update={"train": HOSTILE, "tensor": HOSTILE, "sentence": HOSTILE})
    started = STARTED.model_copy(update={"recipe": HOSTILE, "command": HOSTILE, "inject": (HOSTILE,)})
    return (started, *BAD[1:11], bad)


def test_the_page_runs_no_script_and_escapes_what_is_foreign() -> None:
    page = render_run_html(hostile())
    assert "<script" not in page and "\u202e" not in page
    assert "default-src &#39;none&#39;" in page and 'src="http' not in page and 'href="http' not in page
    assert "The first bad step" in page


def test_markdown_escapes_what_is_foreign() -> None:
    text = render_run_markdown(hostile())
    assert "<script" not in text.replace("`<script>", "") and "\u202e" not in text
    assert "| step | 6 |" in render_run_markdown(BAD)


def test_files_are_written_with_the_pictures_they_name(tmp_path: Path) -> None:
    paths = write_run_reports(BAD, tmp_path)
    assert set(paths) == {"md", "html"}
    text = paths["md"].read_text()
    pictures = [part.split(")")[0] for part in text.split("](")[1:] if part.split(")")[0].endswith(".svg")]
    assert len(pictures) == 7 and all((tmp_path / name).is_file() for name in pictures)


def rewards(family: str = "two-step") -> RlResult:
    """Rewards of which one has risen and the other may have."""
    rise = Estimate(
        value=0.2,
        standard_error=0.05,
        degrees_of_freedom=30.0,
        interval=Interval(lower=0.1, upper=0.3, level=0.95),
        num_probes=200,
        num_clusters=36,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.CR2,
        discordant_rate=None,
    )
    risen = HeldOut(family=family, before=0.5, after=0.7, rise=rise)
    unclear = rise.model_copy(update={"interval": Interval(lower=-0.1, upper=0.5, level=0.95)})
    return RlResult(held_out=risen, confirmed=risen.model_copy(update={"rise": unclear}))


def test_rewards_stand_in_every_view_with_their_intervals(tmp_path: Path) -> None:
    wanted = "greedy reward on 200 held-out two-step prompts: 0.500 -> 0.700, +0.200 [+0.100, +0.300]: risen"
    other = wanted.replace("held-out", "other").replace("[+0.100, +0.300]: ", "[-0.100, +0.500]: not shown to have ")
    assert describe_rewards(rewards()) == (wanted, other)
    assert describe_rewards(None) == () == describe_rewards(RlResult(held_out=None, confirmed=None))
    console = " ".join(render_run_console(CLEAN, width=200, color=False, result=rewards()).split())
    assert wanted in console and other in console
    paths = write_run_reports(CLEAN, tmp_path, result=rewards())
    markdown = unescape(paths["md"].read_text().replace("\\", ""))
    page = unescape(paths["html"].read_text())
    assert all(sentence in view for sentence in (wanted, other) for view in (markdown, page))
    assert "## Reward" not in render_run_markdown(CLEAN)


def test_rewards_leave_the_terminal_summary_short() -> None:
    many = (*BAD, *(finding(7 + n, name=f"other-{n}") for n in range(20)))
    text = render_run_console(many, width=60, color=False, location="run.html", result=rewards())
    assert len(text.splitlines()) <= MAX_LINES and text.count("greedy reward") == 2


def test_a_foreign_family_breaks_no_view() -> None:
    assert "<script" not in render_run_html(CLEAN, rewards(HOSTILE))
    assert "<script" not in render_run_markdown(CLEAN, result=rewards(HOSTILE)).replace("`<script>", "")


def test_an_unknown_format_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pdf"):
        write_run_reports(BAD, tmp_path, ["md", "pdf"])
    assert list(tmp_path.iterdir()) == []
