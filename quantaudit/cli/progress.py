"""Progress on stderr: a bar on a terminal; in a pipe a line a stage, and one every half minute inside a stage."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 30.0


@dataclass(slots=True, kw_only=True)
class _Stage:
    task: TaskID
    began: float
    told: float


class StageProgress:
    """Shows stages as they run; called with (stage, done, total)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._is_live,
        )
        self._stages: dict[str, _Stage] = {}

    def __enter__(self) -> Self:
        """Starts drawing."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops drawing and leaves the terminal clean."""
        self._bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Moves a stage on."""
        now = time.monotonic()
        if stage not in self._stages:
            self._stages[stage] = _Stage(task=self._bar.add_task(stage, total=total), began=now, told=now)
        known = self._stages[stage]
        self._bar.update(known.task, completed=done, total=total)
        if self._is_live:
            return
        if done >= total or now - known.told >= _SECONDS_BETWEEN_LINES:
            known.told = now
            print(describe_stage(stage, done, total, now - known.began), file=sys.stderr, flush=True)


def describe_stage(stage: str, done: int, total: int, seconds: float) -> str:
    """Returns one line: how long the stage took, or how far it is, its rate, and the time left."""
    if done >= total:
        count = f" for {total:,} ({total / seconds:,.0f}/s)" if total > 2 and seconds > 0 else ""
        return f"{stage}: {seconds:.1f} s{count}"
    left = f", about {seconds * (total - done) / done:.0f} s left" if done else ""
    return f"{stage}: {done:,} of {total:,} in {seconds:.0f} s{left}"
