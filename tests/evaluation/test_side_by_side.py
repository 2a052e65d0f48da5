"""Two tasks at a time with a share of the threads each give the bits they give alone, and torch is left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import apply_recipe
from quantaudit.evaluation.plan import plan_batches
from quantaudit.evaluation.side_by_side import (
    describe_floor_threads,
    other_thread_count,
    run_side_by_side,
    share_of_threads,
)
from quantaudit.observers.sums import POINTS
from tests.engines.small import CPU, experts_in, open_small
from tests.evaluation.subjects import world_probes


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_one_thread_runs_tasks_in_turn(threads: Callable[[int], None]) -> None:
    threads(1)
    assert run_side_by_side([threading.get_ident] * 3) == [threading.get_ident()] * 3
    assert describe_floor_threads() == "the same thread, of which there is one"


def test_two_tasks_run_at_once_and_results_keep_their_order(threads: Callable[[int], None]) -> None:
    threads(2)
    together = threading.Barrier(2)

    def meet(name: int) -> int:
        together.wait(timeout=30)  # breaks unless a second task is running
        return name

    assert run_side_by_side([partial(meet, name) for name in range(4)]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("given", "share", "floor"), [(2, 1, 2), (3, 1, 3), (4, 2, 4)])
def test_each_task_has_its_share_and_the_floor_another_number(
    threads: Callable[[int], None], given: int, share: int, floor: int
) -> None:
    threads(given)
    assert share_of_threads() == share
    assert run_side_by_side([torch.get_num_threads] * 3) == [share] * 3
    with other_thread_count():
        assert torch.get_num_threads() == floor
    assert describe_floor_threads() == f"threads {floor} instead of {share} in every fourth batch"
    assert torch.get_num_threads() == given


def test_a_gpu_takes_its_tasks_in_turn(threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    threads(4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert share_of_threads() == 4 and run_side_by_side([threading.get_ident]) == [threading.get_ident()]
    assert describe_floor_threads() == "threads 3 instead of 4 in every fourth batch"


def test_a_task_that_fails_raises_and_leaves_the_threads_as_they_were(threads: Callable[[int], None]) -> None:
    threads(2)

    def fail() -> int:
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        run_side_by_side([fail, lambda: 1])
    assert torch.get_num_threads() == 2


def test_forwards_side_by_side_have_the_bits_of_forwards_alone(threads: Callable[[int], None], audited: Path) -> None:
    hi = open_small(audited / "plain")
    engines = [NativeEngine(hi, CPU), NativeEngine(apply_recipe(hi, experts_in("mxfp4-even")), CPU)]
    (batch,) = plan_batches(world_probes(), 200)[:1]
    tasks = [partial(engine.forward, batch.sequences, observe=POINTS) for engine in engines]
    threads(2)
    together = run_side_by_side(tasks * 2)
    threads(1)
    for alone, beside in zip([task() for task in tasks] * 2, together, strict=True):
        assert torch.equal(alone.logits_MV, beside.logits_MV)
        assert all(torch.equal(value, beside.sites[site]) for site, value in alone.sites.items())
