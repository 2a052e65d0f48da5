"""Progress on stderr: a bar on a terminal, a line a stage in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class StageProgress:
    """Shows stages as they run; called with (stage, done, total)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._is_live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}

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
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total)
            self._began[stage] = time.monotonic()
        self._bar.update(self._tasks[stage], completed=done, total=total)
        if done >= total and not self._is_live:
            print(f"{stage}: {total:,} in {time.monotonic() - self._began[stage]:.1f} s", file=sys.stderr)
