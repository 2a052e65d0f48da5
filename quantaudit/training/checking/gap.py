"""How far two sets of log-probabilities of the same tokens are apart: what a mismatch does to the policy.

With d = serve - train token by token, tokens drawn by the server, and r = exp(-d) = p_train / p_serve:

    k1 = mean d            k3 = mean (r - 1 - log r) = mean (r - 1 + d)          both estimate KL(serve || train)
    ess = (sum r)^2 / (n sum r^2)                                                1 where all weights are equal

Masked tokens are in no sum and no denominator.

Source: J. Schulman, "Approximating KL Divergence" (2020), for k1 and k3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.core.errors import NotMeasuredError
from quantaudit.core.step_log import GapNumbers

EXTREME_RATIO = 2.0
CONFIDENT, DOUBTFUL = 0.9, 0.5


@torch.no_grad()
def measure_gap(serve_N: Tensor, train_N: Tensor, mask_N: Tensor | None = None) -> GapNumbers:
    """Returns the numbers of a gap.

    Args:
        serve_N: Log-probabilities under the server, nats, any shape.
        train_N: Under the trainer, the same shape.
        mask_N: bool, which tokens count; all when `None`.

    Raises:
        NotMeasuredError: If no token counts.
    """
    serve, train = serve_N.double().flatten(), train_N.double().flatten()
    if mask_N is not None:
        kept = mask_N.flatten().bool()
        serve, train = serve[kept], train[kept]
    if not serve.numel():
        raise NotMeasuredError("no token was sampled and kept, so there is no log-probability gap to measure")
    d = serve - train
    size = d.abs()
    ratio = torch.exp(-d)
    middle, high = torch.quantile(size, torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    p_serve, p_train = serve.exp(), train.exp()
    confident = (torch.maximum(p_serve, p_train) >= CONFIDENT) & (torch.minimum(p_serve, p_train) <= DOUBTFUL)
    return GapNumbers(
        num_tokens=d.numel(),
        mean=float(size.mean()),
        p50=middle,
        p99=high,
        max=float(size.max()),
        k1=float(d.mean()),
        k3=float((torch.expm1(-d) + d).mean()),
        ess=float(ratio.sum().square() / (d.numel() * ratio.square().sum())),
        num_extreme=int(((ratio > EXTREME_RATIO) | (ratio < 1 / EXTREME_RATIO)).sum()),
        num_confident=int(confident.sum()),
    )
