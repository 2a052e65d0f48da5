"""Independent computations at the same time, each with its share of the threads.

The forwards of an audit are long runs of small operations, of which two threads make one forward hardly faster. Two
forwards beside each other keep both threads busy: the work takes little more than half of the time. Each computation
gets the same number of threads wherever it runs, so its bits do not depend on what runs beside it.

A GPU does one thing after the other anyway, and so does a single thread; there, tasks take turns with all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_AT_ONCE = 2
_Result = TypeVar("_Result")


def share_of_threads() -> int:
    """Returns the threads that each computation gets."""
    threads = torch.get_num_threads()
    return threads if threads == 1 or torch.cuda.is_initialized() else threads // _AT_ONCE


def run_side_by_side(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Runs tasks that need nothing of each other, two at a time; returns their results in order.

    The first task that fails raises here, after those that had begun.
    """
    threads, share = torch.get_num_threads(), share_of_threads()
    if share == threads:
        return [task() for task in tasks]
    try:
        with ThreadPoolExecutor(_AT_ONCE, initializer=torch.set_num_threads, initargs=(share,)) as pool:
            return list(pool.map(_run, tasks))
    finally:
        torch.set_num_threads(threads)  # torch keeps one number for all threads yet to come


def _run(task: Callable[[], _Result]) -> _Result:
    return task()


def describe_floor_threads() -> str:
    """Says in how many threads the floor runs; one stays one, for a second would lack a core."""
    threads, share = torch.get_num_threads(), share_of_threads()
    if threads == 1:
        return "the same thread, of which there is one"
    return f"threads {_of_floor(threads, share)} instead of {share} in every fourth batch"


@contextmanager
def other_thread_count() -> Iterator[None]:
    """Runs the body with the thread count of the floor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(_of_floor(threads, share_of_threads()))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _of_floor(threads: int, share: int) -> int:
    """Returns all threads where a computation gets a share of them, and else one less, if there is one less."""
    return threads if share < threads else max(1, threads - 1)
