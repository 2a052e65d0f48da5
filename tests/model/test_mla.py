"""Latent attention: no positions, causality, and what its cache holds."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.site import Point, Site
from quantaudit.model.cache import Cache, LatentCache
from quantaudit.model.lm import LanguageModel
from quantaudit.model.mla import GatedLatentAttention, extend_latents
from quantaudit.model.norm import normalize_rms
from quantaudit.model.tap import untapped
from tests.model.small_models import STRANGE, build_model, segments
from tests.model.taps import Recorder
from tests.tolerances import rounding

ALL_MLA = replace(STRANGE, linear_attn_config=replace(STRANGE.linear_attn_config, full_attn_layers=tuple(range(1, 8))))


def layer_of(model: LanguageModel) -> GatedLatentAttention:
    layer = model.model.layers[1].self_attn
    assert isinstance(layer, GatedLatentAttention)
    return layer


def rows(length: int, seed: int) -> Tensor:
    return torch.randn(length, STRANGE.hidden_size, generator=torch.Generator().manual_seed(seed)).double()


@torch.no_grad()
def test_permuting_the_prefix_leaves_the_last_query_unchanged() -> None:
    layer, x = layer_of(build_model(STRANGE, seed=1)), rows(9, seed=2)
    order = torch.cat([torch.randperm(8, generator=torch.Generator().manual_seed(3)), torch.tensor([8])])
    before, after = layer(x, segments(9), None, untapped)[-1], layer(x[order], segments(9), None, untapped)[-1]
    # The sums over nine keys run in another order.
    assert (after - before).abs().max() <= rounding(
        torch.float64, depth=9 + STRANGE.v_head_dim, scale=float(before.abs().max())
    )


@torch.no_grad()
def test_permuting_the_prefix_of_a_whole_model_without_recurrence_leaves_the_last_logits() -> None:
    # Every layer below must be blind to order too, or the keys of the last query would differ: true for the first layer
    # only, since a token's own prefix shrinks or grows. One layer and a head is the longest such model.
    config = replace(ALL_MLA, num_hidden_layers=1)
    model = build_model(config, seed=4)
    tokens = torch.tensor([5, 9, 2, 30, 11])
    before = model(tokens, segments(5), dtype=torch.float64)[-1]
    after = model(tokens[[3, 0, 2, 1, 4]], segments(5), dtype=torch.float64)[-1]
    torch.testing.assert_close(after, before, rtol=1e-13, atol=1e-13)
    assert (model(tokens[[3, 0, 2, 4, 1]], segments(5), dtype=torch.float64)[-1] - before).abs().max() > 1e-3


@torch.no_grad()
def test_a_query_sees_nothing_later() -> None:
    layer, x = layer_of(build_model(STRANGE, seed=5)), rows(8, seed=6)
    changed = x.clone()
    changed[5:] = rows(3, seed=7)
    before, after = layer(x, segments(8), None, untapped), layer(changed, segments(8), None, untapped)
    assert torch.equal(before[:5], after[:5])
    assert (before[5:] - after[5:]).abs().min() > 0.0


@torch.no_grad()
def test_cache_holds_the_normalised_latent_and_the_raw_shared_key() -> None:
    layer, x = layer_of(build_model(STRANGE, seed=8)), rows(5, seed=9)
    cache, seen = Cache(), Recorder()
    layer(x, segments(3, 2), cache, seen)
    compressed = layer.kv_a_proj_with_mqa(x)
    latent = normalize_rms(compressed[:, :8], STRANGE.low_rank_norm_eps) * layer.kv_a_layernorm.weight
    expected = torch.cat([latent, compressed[:, 8:]], dim=-1)
    held = cache.latent[1]
    assert held.lengths_B.tolist() == [3, 2]
    assert held.latent_BSR.shape == (2, 3, 8 + 3)
    torch.testing.assert_close(held.latent_BSR[0], expected[:3], rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(held.latent_BSR[1, :2], expected[3:], rtol=1e-15, atol=1e-15)
    assert torch.equal(seen[Site(1, Point.LATENT_CACHE)], held.latent_BSR)


def test_latents_are_appended_behind_each_sequence_and_the_past_is_not_changed() -> None:
    past = LatentCache(latent_BSR=torch.tensor([[[1.0], [2.0]], [[7.0], [0.0]]]), lengths_B=torch.tensor([2, 1]))
    grown = extend_latents(past, torch.tensor([[[3.0], [0.0]], [[8.0], [9.0]]]), (1, 2))
    assert grown.latent_BSR.squeeze(-1).tolist() == [[1, 2, 3], [7, 8, 9]]
    assert grown.lengths_B.tolist() == [3, 3]
    assert past.latent_BSR.squeeze(-1).tolist() == [[1, 2], [7, 0]]


@torch.no_grad()
def test_padding_of_the_shorter_sequence_is_never_attended_to() -> None:
    layer, x = layer_of(build_model(STRANGE, seed=10)), rows(7, seed=11)
    cache = Cache()
    layer(x[:5], segments(4, 1), cache, untapped)
    cache.latent[1].latent_BSR[1, 1:] = 1e30
    poisoned = layer(x[5:], segments(1, 1), cache, untapped)[1]
    alone = layer(torch.stack([x[4], x[6]]), segments(2), None, untapped)[1]
    torch.testing.assert_close(poisoned, alone, rtol=1e-12, atol=1e-13)
