"""Muon acts on the matrices that act: one expert, one head, one weight; everything else is AdamW's."""

from __future__ import annotations

import copy

import pytest
import torch

from quantaudit.core.recipe import OptimizerKind, Trained
from quantaudit.training.optimizers import build_optimizers, choose_parameters, cut, factor_at, named_blocks
from tests.engines.small import SMALL
from tests.training.toy import REPAIR, toy_model

MUON = REPAIR.model_copy(update={"optimizer": OptimizerKind.MUON, "trained": Trained.ALL, "weight_decay": 0.1})


def give_gradients(parameters: dict[str, torch.nn.Parameter], seed: int) -> None:
    """Gives every parameter a seeded gradient."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_matrices_are_experts_and_heads() -> None:
    named = choose_parameters(toy_model(), Trained.ALL)
    blocks = dict(named_blocks(named, SMALL))
    assert blocks["model.layers.1.block_sparse_moe.experts.w2.weight"] == SMALL.num_experts
    assert blocks["model.layers.0.self_attn.q_proj.weight"] == SMALL.linear_attn_config.num_heads
    assert blocks["model.layers.1.self_attn.q_b_proj.weight"] == SMALL.num_attention_heads
    assert blocks["model.layers.1.self_attn.kv_b_proj.weight"] == SMALL.num_attention_heads
    assert blocks["model.layers.1.self_attn.o_proj.weight"] == 1
    assert not [name for name in blocks if "embed" in name or "lm_head" in name or "conv" in name or "norm" in name]


def test_a_matrix_shares_the_memory_of_its_parameter() -> None:
    model = toy_model()
    name = "model.layers.0.self_attn.k_proj.weight"
    parameter = model.get_parameter(name)
    heads = cut(name, parameter, SMALL)
    assert [tuple(head.shape) for head in heads] == [(16, 32), (16, 32)]
    with torch.no_grad():
        heads[1].fill_(7.0)
    assert bool((parameter[16:] == 7.0).all()) and not bool((parameter[:16] == 7.0).any())


@pytest.mark.parametrize(
    "name", ["model.layers.1.block_sparse_moe.experts.w1.weight", "model.layers.0.self_attn.v_proj.weight"]
)
def test_muon_steps_every_matrix_as_torch_steps_it_alone(name: str) -> None:
    named = {name: toy_model().get_parameter(name)}
    alone = [torch.nn.Parameter(matrix.detach().clone()) for matrix in cut(name, named[name], SMALL)]
    optimizers = build_optimizers(named, SMALL, MUON)
    reference = torch.optim.Muon(alone, MUON.learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        give_gradients(named, seed)
        grad = named[name].grad
        assert grad is not None
        for matrix, part in zip(alone, grad.view(len(alone), *alone[0].shape), strict=True):
            matrix.grad = part.clone()
        optimizers.step(1.0)
        reference.step()
    assert torch.equal(named[name].detach().view(len(alone), *alone[0].shape), torch.stack([m.detach() for m in alone]))


@pytest.mark.parametrize("kind", OptimizerKind)
def test_a_restored_state_goes_on_with_the_same_bits(kind: OptimizerKind) -> None:
    repair = MUON.model_copy(update={"optimizer": kind})
    model = toy_model()
    named = choose_parameters(model, Trained.ALL)
    optimizers = build_optimizers(named, SMALL, repair)
    give_gradients(named, 0)
    optimizers.step(1.0)
    saved = {name: value.clone() for name, value in optimizers.state_tensors().items()}
    other = copy.deepcopy(model)
    other_named = choose_parameters(other, Trained.ALL)
    resumed = build_optimizers(other_named, SMALL, repair)
    resumed.load_state_tensors(saved)
    for parameters, optimizer in ((named, optimizers), (other_named, resumed)):
        give_gradients(parameters, 1)
        optimizer.step(0.5)
    assert all(torch.equal(other_named[name], value) for name, value in named.items())


def test_what_a_repair_does_not_train_is_frozen() -> None:
    model = toy_model()
    assert all(".experts." in name for name in choose_parameters(model, Trained.EXPERTS))
    but_routers = choose_parameters(model, Trained.ALL_BUT_ROUTERS)
    everything = choose_parameters(model, Trained.ALL)
    assert {name for name in everything if name not in but_routers} == {
        f"model.layers.{layer}.block_sparse_moe.gate.weight" for layer in (1, 2, 3)
    }
    assert not [name for name in everything if name.endswith("e_score_correction_bias")]


def test_every_group_has_its_own_rate() -> None:
    repair = REPAIR.model_copy(update={"other_rate": 0.0, "trained": Trained.ALL})
    model = toy_model()
    before = copy.deepcopy(model)
    named = choose_parameters(model, Trained.ALL)
    give_gradients(named, 0)
    build_optimizers(named, SMALL, repair).step(1.0)
    moved = {n for n, p in named.items() if not torch.equal(p, before.get_parameter(n))}
    assert moved == {name for name in named if ".experts." in name}


def test_the_rate_warms_up_and_falls_to_nothing() -> None:
    repair = REPAIR.model_copy(update={"steps": 12, "warmup_steps": 2})
    factors = [factor_at(step, repair) for step in range(12)]
    assert factors[0] == 0.5 and factors[1:3] == [1.0, 1.0]
    assert factors[-1] == 0.1 and factors == sorted(factors[:1]) + sorted(factors[1:], reverse=True)
