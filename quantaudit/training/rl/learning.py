"""One update: recomputed log-probabilities when answers are written, and later the gradient step that learns from them.

Log-probabilities are recomputed while the trainer still has the weights that wrote the tokens, so a lag needs no old
weights to be kept.

Legend: S answers, M written tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.training.rl.objective import Tokens, Weighted, compute_advantages, policy_loss, weigh_tokens
from quantaudit.training.rl.policy import DivergedError, Policy
from quantaudit.training.rl.samples import Sample, reward_of
from quantaudit.training.rl.settings import Replay, RlSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update was.

    Attributes:
        loss: Of the step.
        kl: Estimate (k3) of KL from the engine's distribution to the trainer's current one, nats a token.
        gradient_norm: Before clipping.
        share_masked: Share of the tokens that the correction left out.
        oldest_version: Oldest version among the tokens.
    """

    loss: float
    kl: float
    gradient_norm: float
    share_masked: float
    oldest_version: int


@torch.no_grad()
def recompute(policy: Policy, before: Sequence[Sample], after: Sequence[Sample], settings: RlSettings) -> list[Sample]:
    """Returns the samples with the trainer's log-probabilities of the tokens written since `before`."""
    logprobs = score_answers(policy, after, settings, settings.replay)
    return [
        replace(new, recomputed=(*old.recomputed, *scores[len(old.written) :].tolist()))
        for old, new, scores in zip(before, after, logprobs, strict=True)
    ]


@torch.no_grad()
def score_answers(policy: Policy, samples: Sequence[Sample], settings: RlSettings, replay: Replay) -> list[Tensor]:
    """Returns the trainer's log-probabilities of every sample's written tokens, fp64."""
    scores: list[Tensor] = []
    for piece in micro_batches(samples, settings.tokens_together):
        part = samples[piece]
        scores += policy.answer_logprobs(part, settings.sampling, replay).split([len(s.written) for s in part])
    return scores


def micro_batches(samples: Sequence[Sample], tokens_together: int) -> list[slice]:
    """Cuts samples, in their order, into batches of at most so many tokens (one sample at least)."""
    pieces: list[slice] = []
    start, count = 0, 0
    for place, sample in enumerate(samples):
        if count and count + len(sample.tokens) > tokens_together:
            pieces.append(slice(start, place))
            start, count = place, 0
        count += len(sample.tokens)
    return [*pieces, slice(start, len(samples))] if samples else []


def learn(policy: Policy, samples: Sequence[Sample], settings: RlSettings, step: int) -> Learned:
    """Takes one optimizer step on whole groups of finished answers.

    Raises:
        DivergedError: If the loss or the gradient is not finite; the weights are as they were then.
    """
    tokens = _tokens_of(samples, settings)
    weighted = weigh_tokens(tokens, settings.objective)
    total, kl = 0.0, 0.0
    done = 0
    for piece in micro_batches(samples, settings.tokens_together):
        part = samples[piece]
        here = slice(done, done + sum(len(s.written) for s in part))
        done = here.stop
        current_M = policy.answer_logprobs(part, settings.sampling, settings.replay)
        loss = policy_loss(current_M, weighted.cut(here), settings.objective, weighted.num_kept)
        loss.backward()
        total += float(loss.detach())
        kl += _kl_sum(current_M.detach(), tokens.reported_M[here])
    if not math.isfinite(total):
        raise DivergedError(f"the loss is {total}")
    norm = policy.step(_rate(settings, step))
    return Learned(
        loss=total,
        kl=kl / done,
        gradient_norm=norm,
        share_masked=_share_masked(weighted),
        oldest_version=min(version for s in samples for version in s.versions),
    )


def drop_even_groups(samples: Sequence[Sample], settings: RlSettings) -> list[Sample]:
    """Returns the samples of groups that hold answers of different worth; in the others every advantage is 0."""
    worth: dict[str, set[float]] = {}
    for sample in samples:
        worth.setdefault(sample.task.group, set()).add(reward_of(sample, settings.reward))
    return [sample for sample in samples if len(worth[sample.task.group]) > 1]


def _tokens_of(samples: Sequence[Sample], settings: RlSettings) -> Tokens:
    rewards_S = torch.tensor([reward_of(s, settings.reward) for s in samples], dtype=torch.float64)
    advantages_S = compute_advantages(
        rewards_S, [s.task.group for s in samples], scale_by_deviation=settings.objective.scale_by_deviation
    )
    answer_M = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor([len(s.written) for s in samples]))
    return Tokens(
        reported_M=torch.tensor([p for s in samples for p in s.logprobs], dtype=torch.float64),
        recomputed_M=torch.tensor([p for s in samples for p in s.recomputed], dtype=torch.float64),
        advantage_M=advantages_S[answer_M],
        answer_M=answer_M,
    )


def _kl_sum(current_M: Tensor, reported_M: Tensor) -> float:
    log_ratio_M = current_M - reported_M
    return float((log_ratio_M.exp() - 1.0 - log_ratio_M).sum())


def _share_masked(weighted: Weighted) -> float:
    return 1.0 - weighted.num_kept / max(1, len(weighted.kept_M))


def _rate(settings: RlSettings, step: int) -> float:
    """Returns the learning rate of a step; in a short run at most a tenth is warm-up and three fifths are decay."""
    rising = min(settings.warmup_steps, max(1, settings.steps // 10))
    falling = min(settings.decay_steps, max(1, settings.steps * 3 // 5))
    return settings.learning_rate * min(1.0, (step + 1) / rising, (settings.steps - step) / falling)
