"""Packing: the round trip, and that padding never matters."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.batch import Sequence
from quantaudit.core.site import Point, Site
from quantaudit.model.lm import LanguageModel
from quantaudit.model.packed import pack
from quantaudit.model.segments import Segments
from tests.model.small_models import STRANGE, WIDEST, build_model, draw_tokens, segments
from tests.model.taps import Recorder
from tests.tolerances import whole_stack

CPU = torch.device("cpu")


@pytest.mark.parametrize("lengths", [(1,), (3,), (2, 2), (3, 1, 2), (1, 1, 5), (4, 4, 4)])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
def test_padding_and_unpadding_is_a_round_trip(lengths: tuple[int, ...], tail: tuple[int, ...]) -> None:
    held = Segments.of(lengths, CPU)
    x = torch.randn(sum(lengths), *tail, generator=torch.Generator().manual_seed(0))
    padded = held.pad(x)
    assert padded.shape == (len(lengths), max(lengths), *tail)
    assert torch.equal(held.unpad(padded), x)
    for b, part in enumerate(x.split(lengths)):
        assert torch.equal(padded[b, : lengths[b]], part)
        assert not padded[b, lengths[b] :].any()


def test_slots_increase_strictly_and_last_tokens_are_found() -> None:
    held = segments(3, 1, 2)
    assert held.slot_N.tolist() == [0, 1, 2, 3, 6, 7]
    assert held.last_N().tolist() == [2, 3, 5]
    assert held.longest == 3


def test_gradients_of_padding_are_dropped() -> None:
    held = segments(2, 1)
    x = torch.ones(3, 2, requires_grad=True)
    (held.pad(x) * torch.tensor([[[1.0], [2.0]], [[3.0], [100.0]]])).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def strange() -> LanguageModel:
    return build_model(STRANGE, seed=3)


@pytest.mark.parametrize("lengths", [(5, 1, 19, 3), (2, 2, 2), (33, 7)])
@torch.no_grad()
def test_a_batch_equals_each_sequence_alone(strange: LanguageModel, lengths: tuple[int, ...]) -> None:
    tokens = draw_tokens(STRANGE, sum(lengths), seed=sum(lengths))
    seen = Recorder()
    together = strange(tokens, segments(*lengths), tap=seen, dtype=torch.float64).split(lengths)
    start = 0
    for length, logits in zip(lengths, together, strict=True):
        alone = Recorder()
        expected = strange(tokens[start : start + length], segments(length), tap=alone, dtype=torch.float64)
        scale = float(expected.abs().max())
        assert (logits - expected).abs().max() <= whole_stack(torch.float64, layers=7, width=WIDEST, scale=scale)
        for layer in STRANGE.moe_layers():
            site = Site(layer, Point.TOP_K_IDS)
            assert torch.equal(seen[site][start : start + length], alone[site])
        start += length


@torch.no_grad()
def test_neighbours_and_their_order_do_not_matter(strange: LanguageModel) -> None:
    first, second = draw_tokens(STRANGE, 9, seed=1), draw_tokens(STRANGE, 4, seed=2)
    ab = strange(torch.cat([first, second]), segments(9, 4), dtype=torch.float64)
    ba = strange(torch.cat([second, first]), segments(4, 9), dtype=torch.float64)
    tolerance = whole_stack(torch.float64, layers=7, width=WIDEST, scale=float(ab.abs().max()))
    assert (ab[:9] - ba[4:]).abs().max() <= tolerance
    assert (ab[9:] - ba[:4]).abs().max() <= tolerance


@torch.no_grad()
def test_nothing_leaks_from_one_sequence_to_the_next(strange: LanguageModel) -> None:
    # Same shapes, other contents in the second sequence: the first is the same bits, except where the experts' row
    # counts differ, so the tolerance of another summation order is allowed.
    first = draw_tokens(STRANGE, 9, seed=1)
    out = [
        strange(torch.cat([first, draw_tokens(STRANGE, 6, seed=s)]), segments(9, 6), dtype=torch.float64)[:9]
        for s in (5, 6)
    ]
    assert (out[0] - out[1]).abs().max() <= whole_stack(
        torch.float64, layers=7, width=WIDEST, scale=float(out[0].abs().max())
    )


def test_gradients_of_a_batch_are_the_sum_of_the_gradients_alone(strange: LanguageModel) -> None:
    lengths = (7, 3)
    tokens = draw_tokens(STRANGE, 10, seed=8)

    def gradient(part: torch.Tensor, *sizes: int) -> list[torch.Tensor]:
        loss = strange(part, segments(*sizes), dtype=torch.float64).square().sum()
        trained = [
            p for n, p in strange.named_parameters() if p.requires_grad and "layers.0.self_attention_res" not in n
        ]
        grads = torch.autograd.grad(loss, trained, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, grads, strict=True)]

    together = gradient(tokens, *lengths)
    apart = zip(gradient(tokens[:7], 7), gradient(tokens[7:], 3), strict=True)
    for g, (a, b) in zip(together, apart, strict=True):
        # Twice the depth of the forward: the backward passes through every product once more.
        tolerance = whole_stack(torch.float64, layers=2 * 7, width=WIDEST, scale=max(1.0, float(g.abs().max())))
        assert (g - (a + b)).abs().max() <= tolerance


def test_packed_batch_scores_each_response_token() -> None:
    batch = pack([Sequence(tokens=(1, 2, 3, 4), scored_from=2), Sequence(tokens=(5, 6), scored_from=1)], CPU)
    assert batch.tokens_N.tolist() == [1, 2, 3, 5]
    assert batch.segments.lengths == (3, 1)
    assert batch.selected_M.tolist() == [1, 2, 3]
    assert batch.target_M.tolist() == [3, 4, 6]
