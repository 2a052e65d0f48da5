"""How tokens are drawn, and which distribution their log-probabilities are of.

Draws are the inverse of the cumulative distribution in the order of the vocabulary, at a uniform number that depends
on the request and the position only. So a token does not depend on who shares its batch, beyond the bits of its logits,
and a run that is resumed draws what it would have drawn.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import torch
from pydantic import Field
from torch import Tensor

from quantaudit.core.serial import Frozen


class LogprobsOf(StrEnum):
    """The distribution that log-probabilities are taken of; trainer and engine must mean the same one."""

    RAW = "raw"  # before temperature and top-p
    PROCESSED = "processed"  # after both: the distribution that tokens are drawn from


class Sampling(Frozen):
    """A way to draw tokens.

    Attributes:
        temperature: Divides the logits; 0 takes the likeliest token, with raw log-probabilities.
        top_p: Mass of the likeliest tokens that are drawn from; 1 is all.
        logprobs: What log-probabilities are of.
    """

    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    logprobs: LogprobsOf = LogprobsOf.RAW

    @property
    def is_greedy(self) -> bool:
        """Tells whether nothing is drawn."""
        return self.temperature == 0.0


GREEDY = Sampling(temperature=0.0)


def reported_logprobs(logits_RV: Tensor, sampling: Sampling, token_R: Tensor) -> Tensor:
    """Returns the log-probability of every row's token as declared, `[R]`, differentiable.

    A token outside the nucleus of these logits, drawn by a model of other bits, counts as inside.

    Args:
        logits_RV: fp32 or fp64.
        sampling: Declares the distribution.
        token_R: int64.
    """
    if sampling.logprobs is LogprobsOf.PROCESSED and not sampling.is_greedy:
        logits_RV = process_logits(logits_RV, sampling, token_R)
    return logits_RV.log_softmax(-1).gather(-1, token_R.unsqueeze(-1)).squeeze(-1)


def process_logits(logits_RV: Tensor, sampling: Sampling, always_R: Tensor | None = None) -> Tensor:
    """Returns logits over the temperature, minus infinity outside the nucleus.

    Args:
        logits_RV: fp32 or fp64.
        sampling: Temperature above 0.
        always_R: A token of every row that stays, whatever its rank.
    """
    scaled_RV = logits_RV / sampling.temperature
    if sampling.top_p == 1.0:
        return scaled_RV
    sorted_RV, token_RV = scaled_RV.detach().softmax(-1).sort(dim=-1, descending=True, stable=True)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    outside_RV = torch.zeros_like(scaled_RV, dtype=torch.bool).scatter(-1, token_RV, before_RV >= sampling.top_p)
    if always_R is not None:
        outside_RV = outside_RV.scatter(-1, always_R.unsqueeze(-1), False)
    return scaled_RV.masked_fill(outside_RV, float("-inf"))


def draw_tokens(logits_RV: Tensor, sampling: Sampling, uniform_R: Tensor) -> Tensor:
    """Returns a token a row, int64 `[R]`.

    Args:
        logits_RV: fp64.
        sampling: How to draw.
        uniform_R: fp64 in [0, 1); not looked at without temperature.
    """
    if sampling.is_greedy:
        return logits_RV.argmax(-1)
    mass_RV = process_logits(logits_RV, sampling).softmax(-1).cumsum(-1)
    wanted_R1 = (uniform_R * mass_RV[:, -1]).unsqueeze(-1)
    return (mass_RV <= wanted_R1).sum(-1).clamp(max=logits_RV.shape[-1] - 1)


def draw_uniform(key: str, position: int) -> float:
    """Returns the uniform number of a request's token, the same in every process."""
    return Random(f"{key}/{position}").random()
