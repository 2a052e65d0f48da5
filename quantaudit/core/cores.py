"""How many cores are free at this moment: what a run takes unless it is told a number of threads."""

from __future__ import annotations

import os
import time
from pathlib import Path


def free_cores() -> int:
    """Returns the cores this process may use that are idle now, at least 1.

    Busy cores are counted at this moment, the least of a few looks: an average over the last minute would remember the
    run before, and two runs of one audit would take different numbers of threads.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, allowed - count_others_running())


def count_others_running(looks: int = 5) -> int:
    """Returns how many other threads of this machine are running, 0 where the system does not say."""
    least = None
    for _ in range(looks):
        try:
            running = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
        except (OSError, ValueError, IndexError):
            return 0
        least = running if least is None else min(least, running)
        time.sleep(0.01)
    return max(0, least or 0)
