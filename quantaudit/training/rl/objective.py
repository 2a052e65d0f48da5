"""The loss of one step: group-relative advantages, a clipped ratio, a squared log-ratio, importance weights.

With a the advantage, r = exp(current - old), w the weight of a token and K the number of tokens that are not masked:

    loss = -1/K sum w min(r a, clip(r, 1 - low, 1 + high) a)  +  tau / K sum (log r)^2

w is exp(recomputed - reported), of the token or summed over its sequence: truncated at `weight_high`, or, where it is
masked, kept inside [weight_low, weight_high] while tokens outside are in neither sum nor K.

Source: DeepSeekMath (arXiv:2402.03300) for GRPO; Kimi K2.5 report for the squared log-ratio; Yao et al., "Your
efficient RL framework secretly brings you off-policy RL training" (2025) for truncated weights.
Legend: M tokens of all answers, S answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.training.rl.settings import Correction, ObjectiveSettings, OldLogprobs

_MASKED = (Correction.MASKED_TOKEN, Correction.MASKED_SEQUENCE)
_OF_SEQUENCE = (Correction.TRUNCATED_SEQUENCE, Correction.MASKED_SEQUENCE)
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """What the loss needs of every token, apart from its current log-probability; fp64, `[M]`.

    Attributes:
        reported_M: Log-probability that the engine reported.
        recomputed_M: The trainer's, under the weights that wrote it.
        advantage_M: Of its answer.
        answer_M: int64, its answer.
    """

    reported_M: Tensor
    recomputed_M: Tensor
    advantage_M: Tensor
    answer_M: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighted:
    """Tokens with their weights.

    Attributes:
        old_M: Denominator of the ratio, as a logarithm.
        advantage_M: Of the answer.
        weight_M: 0 where a token is masked.
        kept_M: bool.
    """

    old_M: Tensor
    advantage_M: Tensor
    weight_M: Tensor
    kept_M: Tensor

    @property
    def num_kept(self) -> int:
        """Returns how many tokens count."""
        return int(self.kept_M.sum())

    def cut(self, piece: slice) -> Weighted:
        """Returns the tokens of a micro batch."""
        return Weighted(
            old_M=self.old_M[piece],
            advantage_M=self.advantage_M[piece],
            weight_M=self.weight_M[piece],
            kept_M=self.kept_M[piece],
        )


def compute_advantages(rewards_S: Tensor, groups: Sequence[str], *, scale_by_deviation: bool) -> Tensor:
    """Returns every answer's reward less the mean of its group, over the group's deviation if asked; fp64 `[S]`."""
    advantages_S = torch.zeros_like(rewards_S)
    for group in dict.fromkeys(groups):
        place = torch.tensor([g == group for g in groups])
        centred = rewards_S[place] - rewards_S[place].mean()
        deviation = centred.square().mean().sqrt()
        advantages_S[place] = centred / (deviation + _EPS) if scale_by_deviation else centred
    return advantages_S


def weigh_tokens(tokens: Tokens, settings: ObjectiveSettings) -> Weighted:
    """Returns old log-probabilities, weights, and what is left out."""
    is_rollout = settings.old_logprobs is OldLogprobs.ROLLOUT
    log_weight_M = tokens.recomputed_M - tokens.reported_M
    if settings.correction in _OF_SEQUENCE:
        log_weight_M = _sum_by_answer(log_weight_M, tokens.answer_M)
    weight_M = log_weight_M.exp()
    kept_M = torch.ones_like(weight_M, dtype=torch.bool)
    if settings.correction is Correction.NONE:
        weight_M = torch.ones_like(weight_M)
    elif settings.correction in _MASKED:
        kept_M = (weight_M >= settings.weight_low) & (weight_M <= settings.weight_high)
        weight_M = torch.where(kept_M, weight_M, 0.0)
    else:
        weight_M = weight_M.clamp(max=settings.weight_high)
    return Weighted(
        old_M=tokens.reported_M if is_rollout else tokens.recomputed_M,
        advantage_M=tokens.advantage_M,
        weight_M=weight_M,
        kept_M=kept_M,
    )


def _sum_by_answer(values_M: Tensor, answer_M: Tensor) -> Tensor:
    """Returns at every token the sum over its answer."""
    count = int(answer_M.max()) + 1 if len(answer_M) else 0
    return values_M.new_zeros(count).index_add(0, answer_M, values_M)[answer_M]


def policy_loss(current_M: Tensor, tokens: Weighted, settings: ObjectiveSettings, num_kept: int) -> Tensor:
    """Returns the share of these tokens in the loss of the step.

    Args:
        current_M: Current log-probabilities, with their gradient.
        tokens: The same tokens.
        settings: The loss.
        num_kept: Tokens that count in the whole step, K.
    """
    log_ratio_M = torch.where(tokens.kept_M, current_M - tokens.old_M, 0.0)
    ratio_M = log_ratio_M.exp()
    clipped_M = ratio_M.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    gain_M = torch.minimum(ratio_M * tokens.advantage_M, clipped_M * tokens.advantage_M)
    drift_M = settings.squared_log_ratio * log_ratio_M.square()
    return torch.where(tokens.kept_M, drift_M - tokens.weight_M * gain_M, 0.0).sum() / max(1, num_kept)
