"""Rows of a cache go on as their sequences would, and what goes on from them leaves the cache as it was."""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.engines.cache_rows import take_rows
from quantaudit.engines.realization import Realization
from quantaudit.model.cache import Cache
from quantaudit.model.segments import Segments
from tests.engines.small import CPU, WIDEST, draw_sequences
from tests.tolerances import whole_stack

LENGTHS = (9, 4, 17)


def read(model: torch.nn.Module, tokens: list[tuple[int, ...]], cache: Cache) -> Tensor:
    """Reads tokens behind a cache, and returns all logits."""
    flat = torch.tensor([t for some in tokens for t in some])
    logits: Tensor = model(flat, Segments.of(tuple(map(len, tokens)), CPU), cache=cache)
    return logits


def tensors(cache: Cache) -> list[Tensor]:
    """Returns everything a cache holds."""
    kda = [t for m in cache.kda.values() for t in (m.window_BCW, m.state_BHKV)]
    return kda + [t for m in cache.latent.values() for t in (m.latent_BSR, m.lengths_B)]


@torch.inference_mode()
def test_going_on_from_rows_changes_nothing_they_came_from(plain_hi: Realization) -> None:
    cache = Cache()
    read(plain_hi.model, [s.tokens for s in draw_sequences(*LENGTHS)], cache)
    before = [t.clone() for t in tensors(cache)]
    taken = take_rows(cache, torch.tensor([2, 0, 2, 1]))
    read(plain_hi.model, [(5, 6), (7,), (8, 9, 10), (11,)], taken)
    for held in tensors(taken):
        held.fill_(-1)
    assert len(before) > 4 and all(torch.equal(a, b) for a, b in zip(tensors(cache), before, strict=True))


@torch.inference_mode()
def test_rows_are_their_sequences_in_the_order_asked_for(plain_hi: Realization) -> None:
    prompts = [s.tokens for s in draw_sequences(*LENGTHS)]
    cache = Cache()
    read(plain_hi.model, prompts, cache)
    rows, more = [1, 2, 1, 0], [(5, 6), (7,), (8, 9, 10), (11,)]
    logits = read(plain_hi.model, more, take_rows(cache, torch.tensor(rows)))
    whole = torch.cat(
        [
            read(plain_hi.model, [prompts[row] + tokens], Cache())[-len(tokens) :]
            for row, tokens in zip(rows, more, strict=True)
        ]
    )
    tolerance = whole_stack(torch.float32, layers=4, width=WIDEST, scale=float(whole.abs().max()))
    assert (logits - whole).abs().max() <= tolerance


@torch.inference_mode()
def test_short_rows_leave_the_padding_of_long_ones_behind(plain_hi: Realization) -> None:
    cache = Cache()
    read(plain_hi.model, [s.tokens for s in draw_sequences(*LENGTHS)], cache)
    taken = take_rows(cache, torch.tensor([1, 0]))
    assert {m.latent_BSR.shape[1] for m in cache.latent.values()} == {17}
    assert {m.latent_BSR.shape[1] for m in taken.latent.values()} == {9}
    assert [m.lengths_B.tolist() for m in taken.latent.values()] == [[4, 9]] * 2
