"""Scores behind a shared prompt are those of whole sequences, and no prompt is read twice."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.batch import Sequence
from quantaudit.engines import native
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe
from tests.engines.small import CPU, WIDEST, draw_sequences, experts_in
from tests.tolerances import whole_stack

PROMPTS = [s.tokens for s in draw_sequences(21, 4, 17, 40)]
CONTINUATIONS: list[list[tuple[int, ...]]] = [
    [(7,), (7, 8, 9), (7, 8), (100, 3, 257)],
    [(1, 2)],
    [],
    [(5, 6, 7, 8, 9, 10, 11, 12), (5,)],
]
LONGEST = 8


def whole(engine: NativeEngine, prompt: tuple[int, ...], continuation: tuple[int, ...]) -> tuple[float, float]:
    """Returns ln p by one full forward and a loop over its tokens, and the largest logit."""
    trace = engine.forward([Sequence(tokens=prompt + continuation, scored_from=len(prompt))])
    total = 0.0
    for row, target in zip(trace.logits_MV.double(), continuation, strict=True):
        total += float(row[target] - row.logsumexp(-1))
    return total, float(trace.logits_MV.abs().max())


def compare(engine: NativeEngine) -> None:
    """Compares the scores with those of full forwards."""
    scores = engine.score_continuations(PROMPTS, CONTINUATIONS)
    assert [len(some) for some in scores] == [len(some) for some in CONTINUATIONS]
    for prompt, some, found in zip(PROMPTS, CONTINUATIONS, scores, strict=True):
        for continuation, score in zip(some, found, strict=True):
            expected, scale = whole(engine, prompt, continuation)
            # Prefill and decoding order the sums of every logit differently. ln p is a logit minus a log of summed
            # exponentials of logits, so it moves by at most twice what a logit does, once a token.
            tolerance = 2 * len(continuation) * whole_stack(torch.float32, layers=4, width=WIDEST, scale=scale)
            assert abs(score - expected) <= tolerance


@pytest.mark.parametrize("weight", [None, "mxfp4-even"])
def test_scores_are_those_of_whole_sequences(plain_hi: Realization, weight: str | None) -> None:
    compare(NativeEngine(plain_hi if weight is None else apply_recipe(plain_hi, experts_in(weight)), CPU))


def test_continuations_may_go_on_in_several_lots(plain_hi: Realization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_ROWS_AT_ONCE", 2)
    compare(NativeEngine(plain_hi, CPU))


def test_continuations_do_not_touch_each_other(plain_hi: Realization) -> None:
    engine = NativeEngine(plain_hi, CPU)
    alone = engine.score_continuations(PROMPTS[:1], [[(7, 8, 9)]])[0][0]
    first, other, last = engine.score_continuations(PROMPTS[:1], [[(7, 8, 9), (7, 200, 9), (7, 8, 9)]])[0]
    tolerance = 6 * whole_stack(torch.float32, layers=4, width=WIDEST, scale=whole(engine, PROMPTS[0], (7, 8, 9))[1])
    assert max(abs(first - alone), abs(last - alone)) <= tolerance < abs(other - alone)


def test_every_prompt_is_read_once(plain_hi: Realization) -> None:
    read: list[int] = []
    handle = plain_hi.model.register_forward_pre_hook(lambda module, given: read.append(len(given[0])))
    try:
        NativeEngine(plain_hi, CPU).score_continuations(PROMPTS, CONTINUATIONS)
    finally:
        handle.remove()
    assert read == [sum(map(len, PROMPTS)), sum(len(c) - 1 for some in CONTINUATIONS for c in some)]


def test_ended_sequences_leave_the_batch(plain_hi: Realization) -> None:
    prompts = PROMPTS[:3]
    engine = NativeEngine(plain_hi, CPU)
    free = engine.decode(prompts, max_new=5)
    read: list[int] = []
    handle = plain_hi.model.register_forward_pre_hook(lambda module, given: read.append(len(given[0])))
    end = plain_hi.model.config.eos_token_id
    object.__setattr__(plain_hi.model.config, "eos_token_id", free[1][1])
    try:
        stopped = engine.decode(prompts, max_new=5)
    finally:
        object.__setattr__(plain_hi.model.config, "eos_token_id", end)
        handle.remove()
    going = [sum(step < len(answer) for answer in stopped) for step in range(5)]
    assert read == [sum(map(len, prompts)), *[n for n in going[1:] if n]]
    assert len(stopped[1]) == 2 and going[2] < 3
