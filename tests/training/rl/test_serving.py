"""A model that gets other weights is the model that is built of them, and gate and up share what they round."""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.core.recipe import ComputeDtype
from quantaudit.engines.quantized import quantize_rows
from quantaudit.numerics import get_scheme
from quantaudit.training.rl.decoding import Want, decode
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.memory import PrefixMemory
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.replay import canary_requests
from quantaudit.training.rl.sampling import GREEDY
from quantaudit.training.rl.serving import InputRounding, Served, ServedModels, build_served
from tests.training.rl.tiny import SHORT, TINY, W4A8, tiny_model, world

E4M3 = get_scheme("mxfp8-e4m3-even")


def policy(seed: int) -> Policy:
    return Policy(tiny_model(seed), W4A8, SHORT)


def logits(served: Served) -> Tensor:
    done = decode(served, canary_requests(world()), GREEDY, Want(logits=True), PrefixMemory())
    return torch.cat([c.logits_TV for c in done if c.logits_TV is not None])


def test_other_weights_in_the_same_modules_give_the_bits_of_a_new_model() -> None:
    models = ServedModels(TINY)
    declared = policy(0).declared_execution()
    executions = (declared, declared, declared.model_copy(update={"router": ComputeDtype.BFLOAT16}), EngineExecution())
    seen = []
    for seed, execution in enumerate((*executions, executions[2], executions[2])):
        trainer = policy(seed)
        weights = trainer.values(), trainer.dense()
        again = logits(models.build(*weights, execution))
        assert torch.equal(again, logits(build_served(TINY, *weights, execution)))
        seen.append(again)
    assert not any(torch.equal(a, b) for a, b in zip(seen, seen[1:], strict=False))


def test_rows_are_rounded_once_for_two_readers_and_anew_for_other_rows() -> None:
    rounding = InputRounding(E4M3)
    first, second = torch.randn(2, 5, 64).unbind(0)
    once = rounding(first)
    assert rounding(first) is once and torch.equal(once, quantize_rows(first, E4M3))
    assert torch.equal(rounding(second), quantize_rows(second, E4M3))
    assert torch.equal(rounding(first.clone()), once)
    assert InputRounding(None)(first) is first
