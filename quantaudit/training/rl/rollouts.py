"""Writing the answers of a step: new tasks and what was left unfinished, continued by the engine, versions attached.

A sequence may get only a part of its tokens in a step; the rest is written after the next sync, under newer weights, so
one answer can carry tokens of several versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantaudit.training.rl.decoding import Continuation, Request, Want
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.samples import Sample, Task
from quantaudit.training.rl.settings import RlSettings


def open_samples(tasks: Sequence[Task], settings: RlSettings) -> list[Sample]:
    """Returns the empty samples of these tasks, a group of each."""
    return [
        Sample(key=f"{settings.seed}/{task.group}/{number}", task=task)
        for task in tasks
        for number in range(settings.group_size)
    ]


def requests_of(samples: Sequence[Sample], settings: RlSettings) -> list[Request]:
    """Returns what the engine is asked to continue."""
    limit = settings.partial_tokens
    return [
        Request(
            key=sample.key,
            tokens=sample.tokens,
            position=len(sample.written),
            max_new=min(sample.room, limit) if limit else sample.room,
        )
        for sample in samples
    ]


def forced_requests(before: Sequence[Sample], after: Sequence[Sample]) -> list[Request]:
    """Returns the requests that write again, token by token, what was written between two states of the samples."""
    return [
        Request(
            key=old.key,
            tokens=old.tokens,
            position=len(old.written),
            max_new=len(new.written) - len(old.written),
            forced=new.written[len(old.written) :],
        )
        for old, new in zip(before, after, strict=True)
    ]


def write_answers(
    engine: Engine, samples: Sequence[Sample], settings: RlSettings, version: int, *, with_routing: bool
) -> list[Sample]:
    """Returns the samples with what the engine has written behind each.

    Raises:
        EngineDiedError: If the engine ends or hangs.
    """
    want = Want(routing=with_routing, memory=settings.partial_tokens > 0)
    continuations = engine.generate(requests_of(samples, settings), settings.sampling, want)
    return [_extend(s, c, version) for s, c in zip(samples, continuations, strict=True)]


def _extend(sample: Sample, continuation: Continuation, version: int) -> Sample:
    longer = replace(
        sample,
        written=sample.written + continuation.tokens,
        logprobs=sample.logprobs + continuation.logprobs,
        versions=sample.versions + (version,) * len(continuation.tokens),
        routing=continuation.routing,
    )
    return replace(longer, is_finished=continuation.is_finished or longer.room <= 0)
