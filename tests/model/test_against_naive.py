"""The model equals a second, naive implementation, for configurations in which nothing has its released value."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from quantaudit.core.site import Point, Site
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.lm import LanguageModel
from tests.model import naive
from tests.model.released import RELEASED
from tests.model.small_models import STRANGE, WIDEST, build_model, draw_tokens, naive_weights, segments, sizes_of
from tests.model.taps import Recorder
from tests.tolerances import whole_stack

TOKENS = draw_tokens(STRANGE, 11, seed=5)


def with_kda(config: ModelConfig, kda: LinearAttentionConfig) -> ModelConfig:
    return replace(config, linear_attn_config=kda)


KDA = STRANGE.linear_attn_config
CONSTANTS = {
    "situ-beta": replace(STRANGE, activation_situ_beta=1.6),
    "situ-beta-zero-means-one": replace(STRANGE, activation_situ_beta=0.0),
    "situ-linear-beta": replace(STRANGE, activation_situ_linear_beta=2.1),
    "situ-linear-beta-none": replace(STRANGE, activation_situ_linear_beta=None),
    "rms-norm-eps": replace(STRANGE, rms_norm_eps=0.04),
    "low-rank-norm-eps": replace(STRANGE, low_rank_norm_eps=0.3),
    "scaling-factor": replace(STRANGE, routed_scaling_factor=1.8),
    "no-renormalization": replace(STRANGE, moe_renormalize=False),
    "no-latent-norm": replace(STRANGE, latent_moe_use_norm=False),
    "two-experts": replace(STRANGE, num_experts_per_token=2),
    "one-expert": replace(STRANGE, num_experts_per_token=1),
    "block-of-two": replace(STRANGE, attn_res_block_size=2),
    "block-of-all": replace(STRANGE, attn_res_block_size=8),
    "gate-lower-bound": with_kda(STRANGE, replace(KDA, gate_lower_bound=-3.0)),
    "qk-l2-eps": with_kda(STRANGE, replace(KDA, qk_l2_eps=0.1)),
}
# These change which modules exist or how large they are, so they are drawn anew.
SHAPES = {
    "dense-first": replace(STRANGE, first_k_dense_replace=5),
    "no-dense-layer": replace(STRANGE, first_k_dense_replace=0, moe_layer_freq=1),
    "every-third-sparse": replace(STRANGE, moe_layer_freq=3),
    "one-shared-expert": replace(STRANGE, num_shared_experts=1),
    "five-taps": with_kda(STRANGE, replace(KDA, short_conv_kernel_size=5)),
    "one-tap": with_kda(STRANGE, replace(KDA, short_conv_kernel_size=1)),
    "all-mla": with_kda(STRANGE, replace(KDA, full_attn_layers=tuple(range(1, 8)))),
    "all-kda": with_kda(STRANGE, replace(KDA, full_attn_layers=())),
    "one-kda-head": with_kda(STRANGE, replace(KDA, num_heads=1, head_dim=9)),
    "wide-values": replace(STRANGE, v_head_dim=9, qk_nope_head_dim=2, qk_rope_head_dim=6),
    "steep-gate": with_kda(STRANGE, replace(KDA, gate_lower_bound=-30.0)),
}


@pytest.fixture(scope="module")
def strange() -> LanguageModel:
    return build_model(STRANGE, seed=1)


def reconfigured(model: LanguageModel, config: ModelConfig) -> LanguageModel:
    """Returns a model of another configuration with the same weights, as far as it has them."""
    changed = LanguageModel(config).double().eval()
    known = {name: value for name, value in model.state_dict().items() if name in changed.state_dict()}
    changed.load_state_dict(known)
    return changed


def assert_equals_naive(model: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    seen = Recorder()
    with torch.no_grad():
        logits: torch.Tensor = model(tokens, segments(len(tokens)), tap=seen, dtype=torch.float64)
    expected, trace = naive.forward(sizes_of(model.config), naive_weights(model), tokens.tolist())
    scale = max(1.0, float(np.abs(expected).max()))
    tolerance = whole_stack(torch.float64, layers=model.config.num_hidden_layers, width=WIDEST, scale=scale)
    assert tolerance < 1e-9
    for layer, prefix in enumerate(trace.prefixes):
        assert np.abs(seen[Site(layer, Point.HIDDEN)].numpy() - prefix).max() <= tolerance * np.abs(prefix).max()
    for layer, ids in trace.expert_ids.items():
        assert seen[Site(layer, Point.TOP_K_IDS)].tolist() == [sorted(row) for row in ids]
    assert np.abs(logits.numpy() - expected).max() <= tolerance
    return logits


def test_no_field_of_the_strange_configuration_has_its_released_value() -> None:
    same = {"latent_moe_use_norm", "moe_renormalize"}  # switched off below
    unused = {"initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings"}
    for config, released in ((STRANGE, RELEASED), (STRANGE.linear_attn_config, RELEASED.linear_attn_config)):
        for f in fields(config):
            if f.name not in same | unused:
                assert getattr(config, f.name) != getattr(released, f.name), f.name


def test_strange_configuration_equals_naive(strange: LanguageModel) -> None:
    assert_equals_naive(strange, TOKENS)


@pytest.mark.parametrize("length", [1, 2, 3, 35])
def test_every_length_equals_naive(strange: LanguageModel, length: int) -> None:
    assert_equals_naive(strange, draw_tokens(STRANGE, length, seed=length))


@pytest.mark.parametrize("config", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_every_constant_is_read_and_means_the_same_to_both(strange: LanguageModel, config: ModelConfig) -> None:
    with torch.no_grad():
        before = strange(TOKENS, segments(len(TOKENS)), dtype=torch.float64)
    after = assert_equals_naive(reconfigured(strange, config), TOKENS)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
def test_every_size_is_read_and_means_the_same_to_both(config: ModelConfig) -> None:
    assert_equals_naive(build_model(config, seed=2), TOKENS)
