"""Stable LatentMoE: who is chosen, with what weight, and where the roundings are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.site import Point, Site
from quantaudit.model.config import ModelConfig
from quantaudit.model.moe import LatentMoe, select_experts, weigh_experts
from quantaudit.model.tap import untapped
from tests.model.small_models import STRANGE, build_model
from tests.model.taps import Recorder, Replacer

LAYER = 2  # the first sparse layer


def moe_of(dtype: torch.dtype = torch.float64, config: ModelConfig = STRANGE) -> LatentMoe:
    layer = build_model(config, seed=1, dtype=dtype).model.layers[LAYER].block_sparse_moe
    assert isinstance(layer, LatentMoe)
    return layer


def rows(length: int, seed: int) -> Tensor:
    return torch.randn(length, STRANGE.hidden_size, generator=torch.Generator().manual_seed(seed)).double()


def scores(num_tokens: int, num_experts: int, seed: int) -> Tensor:
    return torch.rand(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))


def test_bias_selects() -> None:
    score = torch.tensor([[0.9, 0.8, 0.1, 0.2]])
    assert select_experts(score, torch.zeros(4), 2).tolist() == [[0, 1]]
    assert select_experts(score, torch.tensor([-1.0, 0.0, 1.0, 0.0]), 2).tolist() == [[1, 2]]


def test_bias_does_not_weigh() -> None:
    score = torch.tensor([[0.9, 0.75, 0.25, 0.2]])
    config = replace(STRANGE, routed_scaling_factor=1.0, num_experts_per_token=2)
    ids = select_experts(score, torch.tensor([-1.0, 0.0, 1.0, 0.0]), 2)
    assert weigh_experts(score, ids, config).tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize("factor", [1.0, 1.9])
def test_weights_sum_to_the_scaling_factor(factor: float) -> None:
    score = scores(50, 9, seed=0)
    config = replace(STRANGE, routed_scaling_factor=factor)
    total = weigh_experts(score, select_experts(score, torch.zeros(9), 3), config).sum(-1)
    # Three quotients, their sum and a product: five roundings in fp32.
    torch.testing.assert_close(total, torch.full((50,), factor), rtol=5 * 2.0**-24, atol=0)


def test_without_renormalization_or_with_one_expert_weights_are_scaled_scores() -> None:
    score = scores(20, 9, seed=1)
    for config in (
        replace(STRANGE, moe_renormalize=False, routed_scaling_factor=2.0),
        replace(STRANGE, num_experts_per_token=1, routed_scaling_factor=2.0),
    ):
        ids = select_experts(score, torch.zeros(9), config.num_experts_per_token)
        assert torch.equal(weigh_experts(score, ids, config), 2.0 * score.gather(-1, ids))


@pytest.mark.parametrize("num_experts", [4, 32, 896])
def test_ties_go_to_the_lowest_index(num_experts: int) -> None:
    # 896 equal scores and top 16, as in the released model: an unstable sort or topk would scatter them.
    top_k = min(16, num_experts // 2)
    equal = torch.full((3, num_experts), 0.5)
    assert select_experts(equal, torch.zeros(num_experts), top_k).tolist() == [list(range(top_k))] * 3
    raised = equal.clone()
    raised[:, num_experts - 1] = 0.75
    expected = [*range(top_k - 1), num_experts - 1]
    assert select_experts(raised, torch.zeros(num_experts), top_k).tolist() == [expected] * 3


def test_router_is_fp32_in_bf16_and_fp64_in_fp64() -> None:
    layer, x = moe_of(torch.float32), rows(40, seed=2)
    seen = Recorder()
    with torch.no_grad():
        layer(x.bfloat16(), seen)
    logits = seen[Site(LAYER, Point.ROUTER_LOGITS)]
    assert logits.dtype is torch.float32
    assert torch.equal(logits, torch.nn.functional.linear(x.bfloat16().float(), layer.gate.weight))
    assert not torch.equal(logits, logits.bfloat16().float())
    assert seen[Site(LAYER, Point.GATE_WEIGHTS)].dtype is torch.float32
    with torch.no_grad():
        layer.double()(x, seen)
    assert seen[Site(LAYER, Point.ROUTER_LOGITS)].dtype is torch.float64


def test_bias_of_two_units_of_bf16_apart_is_not_rounded_away() -> None:
    # In [2, 4) bf16 steps by 2^-6; a finer bias must still decide.
    score, bias = torch.tensor([[0.5, 0.5]]), torch.tensor([2.0, 2.0 + 2.0**-9])
    assert select_experts(score, bias, 1).tolist() == [[1]]


@torch.no_grad()
def test_grouped_experts_equal_each_token_alone() -> None:
    layer, x = moe_of(), rows(23, seed=3)
    together = layer(x, untapped)
    alone = torch.cat([layer(x[i : i + 1], untapped) for i in range(23)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-13)


@torch.no_grad()
def test_rows_reach_the_experts_sorted_and_come_back_in_place() -> None:
    layer, x = moe_of(), rows(6, seed=4)
    seen = Recorder()
    layer(x, seen)
    ids, latent = seen[Site(LAYER, Point.TOP_K_IDS)], layer.routed_expert_down_proj(x)
    expected = torch.cat([latent[(ids == expert).any(-1)] for expert in range(STRANGE.num_experts)])
    assert torch.equal(seen[Site(LAYER, Point.EXPERT_INPUT)], expected)


@torch.no_grad()
def test_experts_without_tokens_and_one_expert_for_all() -> None:
    layer, x = moe_of(), rows(5, seed=5)
    ids = torch.tensor([[0, 4, 8]]).expand(5, 3).contiguous()
    forced = Replacer({Site(LAYER, Point.TOP_K_IDS): lambda _: ids})
    assert torch.isfinite(layer(x, forced)).all()
    assert forced.seen[Site(LAYER, Point.EXPERT_INPUT)].shape == (15, STRANGE.routed_expert_hidden_size)


@torch.no_grad()
def test_forced_experts_are_weighed_by_their_own_scores() -> None:
    layer, x = moe_of(), rows(5, seed=6)
    ids = torch.tensor([[1, 2, 7]]).expand(5, 3).contiguous()
    forced = Replacer({Site(LAYER, Point.TOP_K_IDS): lambda _: ids})
    layer(x, forced)
    score = torch.sigmoid(layer.gate(x))[:, [1, 2, 7]]
    expected = 1.9 * score / score.sum(-1, keepdim=True)
    torch.testing.assert_close(forced.seen[Site(LAYER, Point.GATE_WEIGHTS)], expected, rtol=1e-14, atol=0)


@torch.no_grad()
def test_combine_rounds_each_output_to_bf16_and_sums_in_fp32() -> None:
    layer = moe_of(torch.float32)
    x = rows(8, seed=7).bfloat16()
    hidden = torch.zeros(8 * 3, STRANGE.moe_intermediate_size)
    hidden[:, 0] = 1.0  # each expert then returns the first column of its w2, rounded to bf16
    share = torch.tensor([[0.3, 0.7, 0.0]]).expand(8, 3)  # the sum of two terms has one order
    tap = Replacer(
        {
            Site(LAYER, Point.EXPERT_HIDDEN): lambda _: hidden.bfloat16(),
            Site(LAYER, Point.GATE_WEIGHTS): lambda _: share,
        }
    )
    layer(x, tap)
    outputs = layer.experts.w2.weight[:, :, 0].bfloat16().float()
    ids = tap.seen[Site(LAYER, Point.TOP_K_IDS)]
    expected = (outputs[ids[:, 0]] * share[:, :1] + outputs[ids[:, 1]] * share[:, 1:2]).bfloat16()
    assert torch.equal(tap.seen[Site(LAYER, Point.COMBINE)], expected)


@torch.no_grad()
def test_shared_experts_are_added_unscaled_beside_the_routed() -> None:
    layer, x = moe_of(), rows(4, seed=8)
    nothing = Replacer({Site(LAYER, Point.COMBINE): torch.zeros_like})
    assert torch.equal(layer(x, nothing), layer.shared_experts(x))


@torch.no_grad()
def test_latent_norm_stands_between_the_combine_and_the_projection_up() -> None:
    layer, x = moe_of(), rows(4, seed=9)
    seen = Recorder()
    out = layer(x, seen)
    combined = seen[Site(LAYER, Point.COMBINE)]
    assert layer.routed_expert_norm is not None
    expected = layer.routed_expert_up_proj(layer.routed_expert_norm(combined)) + layer.shared_experts(x)
    assert torch.equal(out, expected)
    without = moe_of(config=replace(STRANGE, latent_moe_use_norm=False))
    assert without.routed_expert_norm is None
    assert not any("routed_expert_norm" in name for name, _ in without.named_parameters())


def test_router_bias_takes_no_gradient() -> None:
    layer = moe_of()
    layer(rows(4, seed=10), untapped).sum().backward()
    assert layer.gate.e_score_correction_bias.grad is None
    assert layer.gate.weight.grad is not None
