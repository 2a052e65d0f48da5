"""Tokens are drawn from the declared distribution, and log-probabilities are of the one that is declared."""

from __future__ import annotations

import math

import torch

from quantaudit.training.rl.sampling import (
    GREEDY,
    LogprobsOf,
    Sampling,
    draw_tokens,
    draw_uniform,
    process_logits,
    reported_logprobs,
)

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)


def softmax(*logits: float) -> list[float]:
    """Returns the probabilities."""
    total = sum(math.exp(v) for v in logits)
    return [math.exp(v) / total for v in logits]


def test_a_token_is_drawn_where_the_uniform_number_falls_in_the_cumulative_distribution() -> None:
    edges = [sum(softmax(2.0, 1.0, 0.0, -1.0)[:n]) for n in range(5)]
    for token in range(4):
        for inside in (0.01, 0.5, 0.99):
            u = edges[token] + inside * (edges[token + 1] - edges[token])
            drawn = draw_tokens(LOGITS, Sampling(), torch.tensor([u], dtype=torch.float64))
            assert drawn.tolist() == [token]


def test_the_temperature_divides_the_logits() -> None:
    processed = process_logits(LOGITS, Sampling(temperature=0.5)).softmax(-1)[0].tolist()
    assert all(math.isclose(a, b, rel_tol=1e-14) for a, b in zip(processed, softmax(4.0, 2.0, 0.0, -2.0), strict=True))


def test_the_nucleus_is_the_smallest_set_that_holds_the_mass() -> None:
    p = softmax(2.0, 1.0, 0.0, -1.0)  # 0.644, 0.237, 0.087, 0.032
    for top_p, size in ((0.5, 1), (p[0] + 1e-9, 2), (0.9, 3), (1.0, 4)):
        kept = process_logits(LOGITS, Sampling(top_p=top_p)).isfinite()[0].tolist()
        assert kept == [n < size for n in range(4)], top_p


def test_nothing_outside_the_nucleus_is_drawn() -> None:
    uniform = torch.linspace(0, 1, 257, dtype=torch.float64)[:-1]
    drawn = draw_tokens(LOGITS.expand(256, -1), Sampling(top_p=0.8), uniform)
    assert set(drawn.tolist()) == {0, 1}


def test_log_probabilities_are_before_or_after_processing_as_declared() -> None:
    token = torch.tensor([1])
    raw = reported_logprobs(LOGITS, Sampling(temperature=0.5, top_p=0.9), token)
    after = reported_logprobs(LOGITS, Sampling(temperature=0.5, top_p=0.9, logprobs=LogprobsOf.PROCESSED), token)
    assert math.isclose(float(raw), math.log(softmax(2.0, 1.0, 0.0, -1.0)[1]), rel_tol=1e-14)
    # At temperature 0.5 the first two hold 0.98 of the mass, the first alone 0.865: the nucleus of 0.9 is both.
    assert math.isclose(float(after), math.log(softmax(4.0, 2.0)[1]), rel_tol=1e-14)


def test_a_token_that_left_the_nucleus_keeps_a_finite_log_probability_and_a_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    declared = Sampling(top_p=0.5, logprobs=LogprobsOf.PROCESSED)
    value = reported_logprobs(logits, declared, torch.tensor([3]))
    value.sum().backward()
    assert math.isclose(float(value.detach()), math.log(softmax(2.0, -1.0)[1]), rel_tol=1e-14)
    assert logits.grad is not None and bool(torch.isfinite(logits.grad).all())


def test_greedy_takes_the_first_of_the_largest() -> None:
    tied = torch.tensor([[0.0, 3.0, 3.0]], dtype=torch.float64)
    assert draw_tokens(tied, GREEDY, torch.zeros(1, dtype=torch.float64)).tolist() == [1]


def test_draws_depend_on_request_and_position_only() -> None:
    assert draw_uniform("a", 0) == draw_uniform("a", 0)
    assert len({draw_uniform(key, place) for key in "ab" for place in range(3)}) == 6
