"""The trainer's replay of what the engine declares: the canary's bits, and the rollouts' log-probabilities.

The canary is a fixed batch of prompts with forced answers. The engine runs it by its own path, prefix memory included;
the trainer runs it with its own weights, in its own process. Weights of the last syncs are kept, so that a memory which
was not flushed can be replayed too.

Legend: M forced tokens, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.probe import Split
from quantaudit.model.config import ModelConfig
from quantaudit.probes.draft import Draft
from quantaudit.probes.tokenizer import BOS, EOS, encode
from quantaudit.probes.world import World
from quantaudit.training.checking.canary import CanaryRun, Hypothesis
from quantaudit.training.rl.decoding import Continuation, Request, Want, decode
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.memory import PrefixMemory
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.samples import Sample
from quantaudit.training.rl.sampling import GREEDY, Sampling
from quantaudit.training.rl.serving import ServedModels

CANARY_FAMILIES = ("two-step", "recall", "restricted")
_CANARY_TOKENS = 2  # one after the prompt, one after a step of decoding: both paths, for little
_KEPT_SYNCS = 4


def canary_requests(world: World) -> list[Request]:
    """Returns the fixed batch: a few items of the select split with the first tokens of their answers."""
    drafts = [_draw_held_out(world, family, Random(f"canary/{n}")) for n, family in enumerate(CANARY_FAMILIES)]
    answers = [(*encode(draft.response), EOS)[:_CANARY_TOKENS] for draft in drafts]
    return [
        Request(key=f"canary/{n}", tokens=(BOS, *encode(draft.prompt)), max_new=len(answer), forced=answer)
        for n, (draft, answer) in enumerate(zip(drafts, answers, strict=True))
    ]


def _draw_held_out(world: World, family: str, rng: Random) -> Draft:
    """Draws an item that is never trained, so that no rollout shares its prefix."""
    while True:
        draft = world.families[family].draw(rng)
        if draft.split is Split.SELECT:
            return draft


def run_canary(engine: Engine, requests: Sequence[Request]) -> Tensor:
    """Returns the engine's log-probabilities of the whole vocabulary at every forced token, fp32 `[M, V]`."""
    return begin_canary(engine, requests)()


def begin_canary(engine: Engine, requests: Sequence[Request]) -> Callable[[], Tensor]:
    """Gives the engine the canary; what is returned waits for its bits, as `run_canary` returns them."""
    answer = engine.begin(requests, GREEDY, Want(logits=True))
    return lambda: _bits(answer())


def _bits(continuations: Sequence[Continuation]) -> Tensor:
    logits = [c.logits_TV for c in continuations if c.logits_TV is not None]
    return torch.cat(logits).float().log_softmax(-1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weights:
    experts: dict[str, Tensor]
    dense: dict[str, Tensor]


class _Replayed(NamedTuple):
    """What a hypothesis gives on the weights of the last sync."""

    hypothesis: Hypothesis
    bits: Tensor


def _kept(tensors: Mapping[str, Tensor], own: set[int]) -> dict[str, Tensor]:
    """Returns tensors that the next update leaves as they are: what lies in the trainer's own memory is copied."""
    return {n: t.clone() if t.untyped_storage().data_ptr() in own else t for n, t in tensors.items()}


class Replayer:
    """Replays the engine with the trainer's weights of this sync, and of the last ones for memories."""

    def __init__(self, config: ModelConfig, requests: Sequence[Request]) -> None:
        self._models, self._requests = ServedModels(config), requests
        self._kept: deque[_Weights] = deque(maxlen=_KEPT_SYNCS)
        self._last: _Replayed | None = None

    def take(self, policy: Policy) -> None:
        """Remembers the weights of a sync; to be called once for each."""
        own = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
        self._kept.appendleft(_Weights(experts=_kept(policy.values(), own), dense=_kept(policy.dense(), own)))
        self._last = None

    def canary_run(self, bits: Tensor, declared: EngineExecution) -> CanaryRun:
        """Returns the engine's canary with the means to explain it."""
        return CanaryRun(bits=bits, declared=declared, replay=self.replay)

    def replay(self, hypothesis: Hypothesis) -> Tensor | None:
        """Returns the canary's bits under a hypothesis; `None` where it needs weights that were not kept.

        The last result is remembered, so that it can be made while the engine is still at its own.
        """
        if self._last is None or self._last.hypothesis != hypothesis:
            memory = PrefixMemory()
            if hypothesis.age:
                if hypothesis.age >= len(self._kept):
                    return None
                self._decode(self._kept[hypothesis.age], hypothesis.execution, memory)
                memory.flush(hypothesis.flush)
            self._last = _Replayed(hypothesis, _bits(self._decode(self._kept[0], hypothesis.execution, memory)))
        return self._last.bits

    def _decode(self, weights: _Weights, execution: EngineExecution, memory: PrefixMemory) -> list[Continuation]:
        served = self._models.build(weights.experts, weights.dense, execution)
        return decode(served, self._requests, GREEDY, Want(logits=True), memory)


def replay_rollouts(
    policy: Policy,
    requests: Sequence[Request],
    sampling: Sampling,
    execution: EngineExecution,
) -> list[Continuation]:
    """Returns the same-step floor: forced requests through the engine's execution, with the trainer's weights, here."""
    return decode(policy.served(execution), requests, sampling, Want(), PrefixMemory())


def new_logprobs(before: Sequence[Sample], after: Sequence[Sample]) -> Tensor:
    """Returns the engine's log-probabilities of the tokens written between two states of the samples, fp64 `[M]`."""
    return torch.tensor(
        [p for old, new in zip(before, after, strict=True) for p in new.logprobs[len(old.written) :]],
        dtype=torch.float64,
    )
