"""Kimi Delta Attention: the bounded gate, the normalisation of q and k, the state it keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.site import Point, Site
from quantaudit.model.cache import Cache
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.kda import KimiDeltaAttention, normalize_l2
from quantaudit.model.lm import LanguageModel
from quantaudit.model.tap import untapped
from tests.model import naive
from tests.model.small_models import STRANGE, build_model, naive_weights, segments, sizes_of
from tests.model.taps import Recorder

HALF_DIGIT = 0.5e-8  # the published numbers have eight decimals
# A_log, z + dt_bias, g
GOLDEN = [
    (0.0, 0.0, -2.5),
    (0.0, 2.0, -4.40398539),
    (0.5, -3.0, -0.03530215),
    (math.log(2.0), 1.5, -4.76287063),
]


def gate_of(a_log: list[float], bias: list[float], bound: float = -5.0) -> KimiDeltaAttention:
    """Returns a layer with one channel a head, for its gate alone."""
    kda = LinearAttentionConfig(full_attn_layers=(), num_heads=len(a_log), head_dim=1, gate_lower_bound=bound)
    layer = KimiDeltaAttention(replace(STRANGE, linear_attn_config=kda), 0).double()
    with torch.no_grad():
        layer.A_log.copy_(torch.tensor(a_log, dtype=torch.float64))
        layer.dt_bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer


def first_layer(config: ModelConfig, seed: int) -> tuple[LanguageModel, KimiDeltaAttention]:
    model = build_model(config, seed=seed)
    layer = model.model.layers[0].self_attn
    assert isinstance(layer, KimiDeltaAttention)
    return model, layer


def wide(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_published_gate_values_wherever_the_sum_comes_from(share: float) -> None:
    # The bias is inside the product with exp(A_log), so only z + dt_bias matters.
    layer = gate_of([a for a, _, _ in GOLDEN], [share * z for _, z, _ in GOLDEN])
    with torch.no_grad():
        g = layer.log_decay(wide(*((1 - share) * z for _, z, _ in GOLDEN)))
    assert (g[0, :, 0] - wide(*(g for _, _, g in GOLDEN))[0]).abs().max() <= HALF_DIGIT
    assert abs(math.exp(float(g[0, 2])) - 0.96531370) <= HALF_DIGIT


def test_gate_never_leaves_its_bounds() -> None:
    layer = gate_of([0.0, 3.0], [0.0, 0.0], bound=-1.5)
    with torch.no_grad():
        g = layer.log_decay(wide(1e6, -1e6))
    assert g.flatten().tolist() == [-1.5, 0.0]


def test_gate_is_fp32_whatever_the_compute_dtype() -> None:
    layer = gate_of([0.3], [0.1]).float()
    z = torch.tensor([[0.7]]).bfloat16()
    assert layer.log_decay(z).dtype is torch.float32
    assert torch.equal(layer.log_decay(z), layer.log_decay(z.float()))


def test_l2_norm_adds_epsilon_to_the_sum_under_the_root() -> None:
    assert torch.equal(normalize_l2(wide(3.0, 4.0), 0.0), wide(3.0, 4.0) * torch.rsqrt(torch.tensor(25.0).double()))
    torch.testing.assert_close(normalize_l2(wide(3.0, 4.0), 11.0), wide(0.5, 4.0 / 6.0), rtol=1e-15, atol=0)
    assert torch.equal(normalize_l2(wide(0.0, 0.0), 1e-6), wide(0.0, 0.0))


def test_query_scale_is_seen_before_the_norm() -> None:
    # With a huge epsilon the output norm is a constant factor, so the layer is linear in the scaled query.
    config = replace(STRANGE, rms_norm_eps=1e12)
    model, layer = first_layer(config, seed=3)
    x = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(4)).double()
    with torch.no_grad():
        out = layer(x, segments(5), None, untapped)
    expected = naive.kda(sizes_of(config), naive_weights(model), "model.layers.0.self_attn.", list(x.numpy()))
    for row, gold in zip(out, expected, strict=True):
        torch.testing.assert_close(row, torch.from_numpy(gold), rtol=1e-11, atol=0)


def test_cache_holds_a_key_first_state_and_the_raw_convolution_inputs() -> None:
    _, layer = first_layer(STRANGE, seed=5)
    x = torch.randn(7, STRANGE.hidden_size, generator=torch.Generator().manual_seed(6)).double()
    cache, seen = Cache(), Recorder()
    with torch.no_grad():
        layer(x, segments(4, 3), cache, seen)
        inputs = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], dim=-1)
        # One token and a zero start: the state is beta v k^T, so its row space is v and its column space is k.
        single = Cache()
        layer(x[:1], segments(1), single, untapped)
        k = torch.nn.functional.silu(layer.k_proj(x[:1]) * layer.k_conv1d.weight[:, 0, -1]).view(4, 7)
        v = torch.nn.functional.silu(layer.v_proj(x[:1]) * layer.v_conv1d.weight[:, 0, -1]).view(4, 7)
        beta = torch.sigmoid(layer.b_proj(x[:1])).view(4, 1, 1)
        expected = beta * normalize_l2(k, 0.2).unsqueeze(-1) * v.unsqueeze(-2)
    torch.testing.assert_close(single.kda[0].state_BHKV[0], expected, rtol=1e-12, atol=1e-15)
    assert cache.kda[0].state_BHKV.shape == (2, 4, 7, 7)
    assert torch.equal(cache.kda[0].window_BCW, torch.stack([inputs[1:4].T, inputs[4:7].T]))
    assert torch.equal(seen[Site(0, Point.KDA_STATE)], cache.kda[0].state_BHKV)


def test_state_and_decay_stay_fp32_in_bf16() -> None:
    model = build_model(STRANGE, seed=7, dtype=torch.float32)
    cache = Cache()
    with torch.no_grad():
        logits = model(torch.tensor([1, 2, 3]), segments(3), cache=cache, dtype=torch.bfloat16)
    assert logits.dtype is torch.bfloat16
    assert cache.kda[0].state_BHKV.dtype is torch.float32
    assert cache.kda[0].window_BCW.dtype is torch.bfloat16
    assert cache.latent[1].latent_BSR.dtype is torch.bfloat16
