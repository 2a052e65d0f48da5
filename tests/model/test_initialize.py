"""Initial weights: what is zero, what is one, what is drawn, and that a seed is a model."""

from __future__ import annotations

import torch

from quantaudit.model.initialize import initialize
from quantaudit.model.lm import LanguageModel
from tests.model.small_models import STRANGE


def initialized(seed: int) -> LanguageModel:
    model = LanguageModel(STRANGE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    initialize(model, seed)
    return model


def test_every_parameter_is_written() -> None:
    assert all(torch.isfinite(p).all() for p in initialized(0).parameters())


def test_a_seed_is_a_model() -> None:
    a, b, c = (initialized(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])


def test_gates_queries_and_biases_start_neutral() -> None:
    for name, parameter in initialized(3).named_parameters():
        if name.endswith(("A_log", "res_proj.weight", "e_score_correction_bias")):
            assert not parameter.any(), name
        if name.endswith("norm.weight"):
            assert (parameter == 1.0).all(), name


def test_step_bias_is_the_inverse_softplus_of_a_small_step() -> None:
    bias = initialized(4).get_parameter("model.layers.0.self_attn.dt_bias")
    steps = torch.nn.functional.softplus(bias.detach())
    # Log-uniform in [1e-3, 0.1]; the inverse is computed in fp32 on numbers near ln(1e-3), 7 ulps at most.
    assert steps.min() >= 1e-3 * (1 - 1e-5)
    assert steps.max() <= 0.1 * (1 + 1e-5)
    assert steps.max() / steps.min() > 10
