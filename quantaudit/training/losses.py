"""What a repair minimises: cross-entropy with the right answer, divergence from hi's distribution, or both.

With p hi's distribution at a scored position, q that of the model in training and m = (p + q) / 2:

    forward          KL(p || q) = sum p (ln p - ln q)       covers all that hi would say
    reverse          KL(q || p)                             stays within what hi would say
    Jensen-Shannon   (KL(p || m) + KL(q || m)) / 2          symmetric, at most ln 2

Everything is computed in fp32 from logits, in nats.

Legend: M scored positions, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from quantaudit.core.recipe import Divergence, Repair


def measure_loss(
    logits_MV: Tensor, target_M: Tensor, hi_logits_MV: Tensor | None, weight_M: Tensor, repair: Repair
) -> Tensor:
    """Returns the weighted sum of the loss over positions, a scalar.

    Args:
        logits_MV: Of the model in training.
        target_M: Right tokens.
        hi_logits_MV: Of hi, without gradient; needed where the repair distils.
        weight_M: Weight of every position.
        repair: Says which losses, and how they are mixed.
    """
    total_M = torch.zeros_like(weight_M)
    if repair.cross_entropy > 0:
        total_M = total_M + repair.cross_entropy * functional.cross_entropy(
            logits_MV.float(), target_M, reduction="none"
        )
    if repair.distillation > 0:
        assert hi_logits_MV is not None, "distillation needs hi"
        total_M = total_M + repair.distillation * measure_divergence(hi_logits_MV, logits_MV, repair.divergence)
    return (weight_M * total_M).sum()


def measure_divergence(hi_logits_MV: Tensor, logits_MV: Tensor, kind: Divergence) -> Tensor:
    """Returns the divergence at every position, nats, `[M]`."""
    log_p, log_q = hi_logits_MV.float().log_softmax(-1), logits_MV.float().log_softmax(-1)
    match kind:
        case Divergence.FORWARD:
            return _kl(log_p, log_q)
        case Divergence.REVERSE:
            return _kl(log_q, log_p)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (_kl(log_p, log_m) + _kl(log_q, log_m)) / 2


def _kl(log_a_MV: Tensor, log_b_MV: Tensor) -> Tensor:
    return (log_a_MV.exp() * (log_a_MV - log_b_MV)).sum(-1)
