"""A stopwatch for what runs in two processes: wall time, and the processor time of both together.

On a busy machine wall time says what else it was doing; processor time says what the work takes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, TypeVar

from quantaudit.core.serial import Frozen

_T = TypeVar("_T")


class Cost(Frozen):
    """Medians of what something took, seconds: wall, and processor time of trainer and engine together."""

    wall: float
    processor: float


class Spent(NamedTuple):
    """Seconds of one action."""

    wall: float
    processor: float


class Stopwatch:
    """Times actions by name, in wall time and in processor time of this process and of another one."""

    def __init__(self, pid: int | None = None) -> None:
        # Linux makes the number of a process's clock from that of the process (clock_getcpuclockid).
        self._clock = None if pid is None else (~pid << 3) | 2
        self.spent: dict[str, list[Spent]] = defaultdict(list)

    def time(self, name: str, action: Callable[[], _T]) -> _T:
        """Returns what the action returns."""
        wall, processor = time.perf_counter(), self._processor()
        result = action()
        self.spent[name].append(Spent(time.perf_counter() - wall, self._processor() - processor))
        return result

    def _processor(self) -> float:
        return time.process_time() + (0.0 if self._clock is None else time.clock_gettime(self._clock))

    def cost(self, name: str) -> Cost:
        """Returns medians; the first time is not counted where there are others."""
        counted = self.spent[name][1:] or self.spent[name]
        return Cost(wall=median(s.wall for s in counted), processor=median(s.processor for s in counted))
