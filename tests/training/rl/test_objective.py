"""The loss is what its equation says; weights are truncated or masked, and masked tokens are in no denominator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantaudit.training.rl.objective import Tokens, compute_advantages, policy_loss, weigh_tokens
from quantaudit.training.rl.settings import Correction, ObjectiveSettings, OldLogprobs

REPORTED = (-1.0, -0.5, -2.0, -0.1)
RECOMPUTED = (-1.0, -1.5, -0.5, -0.2)  # weights 1, 0.37, 4.48, 0.90; of the two answers e^-1 and e^1.4
ADVANTAGE = (1.0, 1.0, -1.0, -1.0)
ANSWER = (0, 0, 1, 1)


def tokens() -> Tokens:
    """Returns two answers of two tokens."""
    wide = torch.float64
    return Tokens(
        reported_M=torch.tensor(REPORTED, dtype=wide),
        recomputed_M=torch.tensor(RECOMPUTED, dtype=wide),
        advantage_M=torch.tensor(ADVANTAGE, dtype=wide),
        answer_M=torch.tensor(ANSWER),
    )


def settings(correction: Correction, **changes: float) -> ObjectiveSettings:
    """Returns the loss with this correction."""
    return ObjectiveSettings.model_validate({"correction": correction, **changes})


def near(values: Tensor, wanted: list[float]) -> bool:
    """Tells whether fp64 results of a few operations agree to 1e-12, far above their rounding."""
    return torch.allclose(values, torch.tensor(wanted, dtype=torch.float64), rtol=0.0, atol=1e-12)


def test_token_weights_are_truncated_from_above_only() -> None:
    weighted = weigh_tokens(tokens(), settings(Correction.TRUNCATED_TOKEN))
    assert near(weighted.weight_M, [1.0, math.exp(-1.0), 2.0, math.exp(-0.1)])
    assert weighted.num_kept == 4


def test_sequence_weights_are_products_over_the_answer() -> None:
    weighted = weigh_tokens(tokens(), settings(Correction.TRUNCATED_SEQUENCE))
    assert near(weighted.weight_M, [math.exp(-1.0)] * 2 + [2.0] * 2)


def test_masked_tokens_have_no_weight_and_are_not_counted() -> None:
    weighted = weigh_tokens(tokens(), settings(Correction.MASKED_TOKEN))
    assert weighted.kept_M.tolist() == [True, False, False, True]
    assert near(weighted.weight_M, [1.0, 0.0, 0.0, math.exp(-0.1)])
    assert weighted.num_kept == 2


def test_masked_sequences_go_whole() -> None:
    weighted = weigh_tokens(tokens(), settings(Correction.MASKED_SEQUENCE, weight_low=0.3))
    assert weighted.kept_M.tolist() == [True, True, False, False]


def test_the_denominator_leaves_masked_tokens_out() -> None:
    chosen = settings(Correction.MASKED_TOKEN, squared_log_ratio=0.0)
    weighted = weigh_tokens(tokens(), chosen)
    current = torch.tensor(RECOMPUTED, dtype=torch.float64)  # every ratio is 1
    loss = policy_loss(current, weighted, chosen, weighted.num_kept)
    # Kept are token 0 (weight 1, advantage 1) and token 3 (weight e^-0.1, advantage -1), over 2.
    assert float(loss) == pytest.approx(-(1.0 - math.exp(-0.1)) / 2, abs=1e-12)


def test_masked_tokens_have_no_gradient_even_where_their_ratio_overflows() -> None:
    chosen = settings(Correction.MASKED_TOKEN)
    far = tokens()
    far.reported_M[1] = -800.0
    current = torch.tensor(RECOMPUTED, dtype=torch.float64, requires_grad=True)
    weighted = weigh_tokens(far, chosen)
    policy_loss(current, weighted, chosen, weighted.num_kept).backward()
    assert current.grad is not None
    assert current.grad[1] == 0.0 and bool(torch.isfinite(current.grad).all()) and current.grad[0] != 0.0


@pytest.mark.parametrize("move", [0.1, 0.5, -0.1, -0.5])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_ratio_is_clipped_where_that_lowers_the_gain(move: float, advantage: float) -> None:
    chosen = settings(Correction.NONE, squared_log_ratio=0.25, clip_low=0.2, clip_high=0.28)
    one = Tokens(
        reported_M=torch.zeros(1, dtype=torch.float64),
        recomputed_M=torch.zeros(1, dtype=torch.float64),
        advantage_M=torch.full((1,), advantage, dtype=torch.float64),
        answer_M=torch.zeros(1, dtype=torch.int64),
    )
    ratio = math.exp(move)
    gain = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
    loss = policy_loss(torch.full((1,), move, dtype=torch.float64), weigh_tokens(one, chosen), chosen, 1)
    assert float(loss) == pytest.approx(0.25 * move * move - gain, abs=1e-12)


def test_the_ratio_is_to_what_was_reported_or_to_what_was_recomputed() -> None:
    rollout = ObjectiveSettings(old_logprobs=OldLogprobs.ROLLOUT, correction=Correction.NONE)
    assert weigh_tokens(tokens(), rollout).old_M.tolist() == list(REPORTED)
    assert weigh_tokens(tokens(), settings(Correction.NONE)).old_M.tolist() == list(RECOMPUTED)


def test_a_correction_of_reported_ratios_would_count_the_distance_twice_and_is_refused() -> None:
    with pytest.raises(ValueError, match="the ratio holds that distance already"):
        ObjectiveSettings(old_logprobs=OldLogprobs.ROLLOUT, correction=Correction.TRUNCATED_TOKEN)


def test_advantages_are_relative_to_their_group() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    plain = compute_advantages(rewards, ["a", "a", "a", "a", "b", "b"], scale_by_deviation=False)
    assert near(plain, [0.75, -0.25, -0.25, -0.25, 0.0, 0.0])
    scaled = compute_advantages(rewards, ["a", "a", "a", "a", "b", "b"], scale_by_deviation=True)
    deviation = math.sqrt(3.0 / 16.0) + 1e-6
    assert near(scaled, [0.75 / deviation, *[-0.25 / deviation] * 3, 0.0, 0.0])
