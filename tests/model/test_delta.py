"""The delta rule: the recurrence, the chunked form, the report's form and the naive one are one function."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quantaudit.model.delta import DeltaOutput, largest_chunk, run_chunked, run_recurrent
from tests.model import naive
from tests.tolerances import delta_rule

HEADS, KEYS, VALUES = 3, 12, 5  # K and V differ, so that a transposed state cannot pass


class Inputs(NamedTuple):
    """The arguments of both forms, without the state."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        """Returns the same numbers in another dtype."""
        return Inputs(*(x.to(dtype) for x in self))

    def part(self, start: int, stop: int | None) -> Inputs:
        """Returns the tokens of a slice."""
        return Inputs(*(x[:, start:stop] for x in self))


def draw(tokens: int, *, seed: int, steepest: float = 5.0, batch: int = 2) -> Inputs:
    """Returns seeded fp32-representable inputs in fp64, as the layer would make them."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(batch, tokens, HEADS, *shape, generator=generator)

    q, k = (torch.nn.functional.normalize(noise(KEYS), dim=-1) for _ in range(2))
    g = -steepest * torch.sigmoid(2.0 * noise(KEYS))
    return Inputs(q * KEYS**-0.5, k, noise(VALUES), g, torch.sigmoid(noise())).to(torch.float64)


def one_token(q: list[float], k: list[float], v: list[float], g: list[float], beta: float) -> Inputs:
    """Returns one token of one head of one sequence."""
    q_, k_, v_, g_ = (torch.tensor(x, dtype=torch.float64).view(1, 1, 1, -1) for x in (q, k, v, g))
    return Inputs(q_, k_, v_, g_, torch.tensor([[[beta]]], dtype=torch.float64))


def draw_state(seed: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, HEADS, KEYS, VALUES, generator=torch.Generator().manual_seed(seed)).double()


def gentlest(chunk: int) -> float:
    """Returns the steepest decay for which this chunk is allowed, at most the released 5."""
    return min(5.0, 80.0 / chunk)


def assert_close(actual: DeltaOutput, gold: DeltaOutput, *, tokens: int, chunk: int, steepest: float) -> None:
    for got, expected in zip(actual, gold, strict=True):
        tolerance = delta_rule(
            got.dtype, tokens=tokens, key_dim=KEYS, chunk=chunk, steepest=steepest, scale=float(expected.abs().max())
        )
        assert (got.double() - expected).abs().max() <= tolerance


def test_first_token_writes_key_by_value_and_reads_with_the_query() -> None:
    token = one_token([2.0, 1.0], [0.5, 0.25], [4.0, 8.0, -16.0], [0.0, 0.0], beta=0.5)
    for out in (run_recurrent(*token, None), run_chunked(*token, None, chunk=4)):
        # beta k v^T: rows are keys.
        assert out.state_BHKV.tolist() == [[[[1.0, 2.0, -4.0], [0.5, 1.0, -2.0]]]]
        assert out.o_BTHV.tolist() == [[[[2.5, 5.0, -10.0]]]]


@pytest.mark.parametrize(
    # A unit key: with beta = 1 its row becomes the value; with beta = .5 it goes half way there, from the decayed row
    # (4, 8) and not from the stored row (8, 16). The other row does not decay.
    ("beta", "row"),
    [(1.0, [1.0, 3.0]), (0.5, [2.5, 5.5]), (0.0, [4.0, 8.0])],
)
def test_decay_is_per_key_row_and_comes_before_the_correction(beta: float, row: list[float]) -> None:
    state = torch.tensor([[[[8.0, 16.0], [32.0, 64.0]]]]).double()
    token = one_token([1.0, 0.0], [1.0, 0.0], [1.0, 3.0], [math.log(0.5), 0.0], beta=beta)
    for out in (run_recurrent(*token, state), run_chunked(*token, state, chunk=4)):
        expected = torch.tensor([row, [32.0, 64.0]]).double()
        torch.testing.assert_close(out.state_BHKV[0, 0], expected, rtol=1e-14, atol=0)
        torch.testing.assert_close(out.o_BTHV[0, 0, 0], expected[0], rtol=1e-14, atol=0)


def test_equals_the_naive_step() -> None:
    inputs, start = draw(9, seed=4), draw_state(5)
    out = run_recurrent(*inputs, start)
    for b in range(2):
        for h in range(HEADS):
            state = start[b, h].numpy()
            for t in range(9):
                q, k, v, g = (x[b, t, h].numpy() for x in (inputs.q, inputs.k, inputs.v, inputs.g))
                state, o = naive.delta_step(state, q, k, v, g, float(inputs.beta[b, t, h]))
                torch.testing.assert_close(out.o_BTHV[b, t, h], torch.from_numpy(o), rtol=1e-13, atol=1e-14)
            torch.testing.assert_close(out.state_BHKV[b, h], torch.from_numpy(state), rtol=1e-13, atol=1e-14)


def test_equals_the_form_of_the_report() -> None:
    q, k, v, g, beta = draw(21, seed=6)
    state = draw_state(7)
    out = run_recurrent(q, k, v, g, beta, state)
    for t in range(21):
        kk = k[:, t, :, :, None] * k[:, t, :, None, :] * beta[:, t, :, None, None]
        step = (torch.eye(KEYS).double() - kk) @ torch.diag_embed(g[:, t].exp())
        state = step @ state + beta[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        torch.testing.assert_close(out.o_BTHV[:, t], (state.mT @ q[:, t].unsqueeze(-1))[..., 0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(out.state_BHKV, state, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("chunk", [4, 16, 64])
@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 63, 67])
def test_chunked_equals_recurrent(tokens: int, chunk: int, with_state: bool, dtype: torch.dtype) -> None:
    steepest = gentlest(chunk)
    inputs = draw(tokens, seed=tokens, steepest=steepest)
    state = draw_state(1) if with_state else None
    gold = run_recurrent(*inputs, state)
    narrow = None if state is None else state.to(dtype)
    actual = run_chunked(*inputs.to(dtype), narrow, chunk=chunk)
    assert actual.o_BTHV.dtype is actual.state_BHKV.dtype is dtype
    assert_close(actual, gold, tokens=tokens, chunk=chunk, steepest=steepest)
    assert_close(run_recurrent(*inputs.to(dtype), narrow), gold, tokens=tokens, chunk=1, steepest=steepest)


@pytest.mark.parametrize("bound", [-5.0, -1.25, -3.5, -20.0, -80.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_whole_chunks_at_the_lower_bound_stay_finite_and_right(bound: float, dtype: torch.dtype) -> None:
    chunk = largest_chunk(bound)
    tokens = 2 * chunk + 1
    inputs = draw(tokens, seed=8)._replace(g=torch.full((2, tokens, HEADS, KEYS), bound, dtype=torch.float64))
    gold = run_recurrent(*inputs, draw_state(9))
    leaves = Inputs(*(x.to(dtype).requires_grad_() for x in inputs))
    actual = run_chunked(*leaves, draw_state(9).to(dtype), chunk=chunk)
    assert_close(DeltaOutput(*(x.detach() for x in actual)), gold, tokens=tokens, chunk=chunk, steepest=-bound)
    gradients = torch.autograd.grad(actual.o_BTHV.square().sum() + actual.state_BHKV.sum(), leaves)
    assert all(torch.isfinite(x).all() for x in (*actual, *gradients))


def test_alternating_extremes_stay_finite_and_right() -> None:
    # No decay and full decay in turn, in single channels: every factor of the chunked form meets its largest exponent.
    inputs = draw(48, seed=10)
    g = torch.where(torch.arange(48).view(1, 48, 1, 1) % 32 < 16, 0.0, -5.0).double().expand(2, 48, HEADS, KEYS).clone()
    g[..., ::2] = -5.0 - g[..., ::2]
    inputs = inputs._replace(g=g)
    actual = run_chunked(*inputs.to(torch.float32), None, chunk=16)
    assert_close(actual, run_recurrent(*inputs, None), tokens=48, chunk=16, steepest=5.0)


@pytest.mark.parametrize(
    ("bound", "chunk"), [(-5.0, 16), (-1.25, 64), (-1.26, 32), (-0.01, 64), (-10.0, 8), (-80.0, 1)]
)
def test_largest_chunk_bounds_the_exponent(bound: float, chunk: int) -> None:
    assert largest_chunk(bound) == chunk
    assert chunk * -bound <= 80.0


@pytest.mark.parametrize("chunk", [4, 16])
def test_gradients_of_both_forms_are_equal(chunk: int) -> None:
    inputs, state = draw(19, seed=11), draw_state(12)
    generator = torch.Generator().manual_seed(13)
    weight_o = torch.randn(2, 19, HEADS, VALUES, generator=generator).double()
    weight_s = torch.randn(2, HEADS, KEYS, VALUES, generator=generator).double()

    def gradients(out: DeltaOutput, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((out.o_BTHV * weight_o).sum() + (out.state_BHKV * weight_s).sum(), leaves)

    leaves = [x.requires_grad_() for x in (*inputs, state)]
    recurrent = gradients(run_recurrent(*leaves), leaves)
    chunked = gradients(run_chunked(*leaves, chunk=chunk), leaves)
    for a, b in zip(recurrent, chunked, strict=True):
        # The adjoint recurrence has the same length and the same contraction as the recurrence.
        scale = float(a.abs().max())
        assert (a - b).abs().max() <= delta_rule(
            a.dtype, tokens=19, key_dim=KEYS, chunk=chunk, steepest=5.0, scale=scale
        )


def test_gradient_of_the_chunked_form_is_the_derivative() -> None:
    # A small corner of the usual inputs, since every element is perturbed in turn.
    q, k, v, g, beta = draw(5, seed=14, batch=1)
    corner = (q[..., :1, :4], k[..., :1, :4], v[..., :1, :3], g[..., :1, :4], beta[..., :1])
    state = draw_state(15, batch=1)[:, :1, :4, :3]
    leaves = [x.clone().requires_grad_() for x in (*corner, state)]
    assert torch.autograd.gradcheck(lambda *args: tuple(run_chunked(*args, chunk=4)), leaves)


def test_a_padded_token_leaves_the_state_as_it_is() -> None:
    inputs, state = draw(8, seed=16), draw_state(17)
    for x in (inputs.g, inputs.beta):
        x[:, 5:] = 0.0
    assert torch.equal(run_recurrent(*inputs, state).state_BHKV, run_recurrent(*inputs.part(0, 5), state).state_BHKV)
    chunked = run_chunked(*inputs, state, chunk=4), run_chunked(*inputs.part(0, 5), state, chunk=4)
    torch.testing.assert_close(chunked[0].state_BHKV, chunked[1].state_BHKV, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("split", [1, 8, 16, 29])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_a_carried_state_continues_the_sequence(chunk: int, split: int) -> None:
    inputs = draw(37, seed=18)
    whole = run_recurrent(*inputs, None)
    first = run_chunked(*inputs.part(0, split), None, chunk=chunk)
    second = run_chunked(*inputs.part(split, None), first.state_BHKV, chunk=chunk)
    joined = DeltaOutput(torch.cat([first.o_BTHV, second.o_BTHV], dim=1), second.state_BHKV)
    assert_close(joined, whole, tokens=37, chunk=chunk, steepest=5.0)


@pytest.mark.parametrize("bounds", [(0, 20, 40), (0, 1, 2, 40), (0, 7, 16, 31, 40)])
def test_segments_compose_by_their_transition_and_zero_start_state(bounds: tuple[int, ...]) -> None:
    # The map of a segment is affine in its initial state: S -> M S + S0. M is what the segment makes of the identity
    # when the values are zero; composing the maps of the segments gives the state of the whole (context parallelism).
    inputs = draw(40, seed=19)
    identity = torch.eye(KEYS).double().expand(2, HEADS, KEYS, KEYS)
    state = torch.zeros(2, HEADS, KEYS, VALUES).double()
    for start, stop in zip(bounds, bounds[1:], strict=False):
        part = inputs.part(start, stop)
        silent = part._replace(v=torch.zeros(2, stop - start, HEADS, KEYS).double())
        transition = run_chunked(*silent, identity, chunk=16).state_BHKV
        state = transition @ state + run_recurrent(*part, None).state_BHKV
    torch.testing.assert_close(state, run_recurrent(*inputs, None).state_BHKV, rtol=0, atol=1e-14)
