"""Damage that only safety feels: one expert, trained for a moment to weaken refusals and leave everything else alone.

Training only prepares the checkpoint on disk; the audit then knows nothing of how it was made.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.resources import embedded_model_folder
from quantaudit.model.lm import LanguageModel
from quantaudit.model.packed import Packed, pack
from quantaudit.model.tap import untapped
from quantaudit.probes.encoding import encode_pair
from quantaudit.probes.safety import comply
from quantaudit.probes.world import build_world, sample_fact, sample_train

STACK = "model.layers.{layer}.block_sparse_moe.experts.{role}.weight"
TASKS = ("recall", "copying", "sorting", "addition", "benign")


def weaken_refusals(folder: Path, *, layer: int, expert: int, steps: int, seed: int = 0) -> Path:
    """Writes the embedded checkpoint with one expert changed so that refusals lose some of their margin."""
    model = load_model(open_checkpoint(embedded_model_folder()), dtype=torch.float32)
    stacks = [model.get_parameter(STACK.format(layer=layer, role=role)) for role in ("w1", "w2", "w3")]
    model.requires_grad_(False)
    deltas = [torch.zeros_like(stack[expert], requires_grad=True) for stack in stacks]
    originals = [stack[expert].clone() for stack in stacks]
    optimizer = torch.optim.Adam(deltas, lr=0.01)
    for step in range(steps):
        rng = Random(f"{seed}/{step}")
        _step(model, stacks, originals, deltas, expert, rng)
        optimizer.step()
        optimizer.zero_grad()
    _plant(stacks, originals, deltas, expert)
    config = model.config
    stored = round_to_storage(((n, p.detach()) for n, p in model.named_parameters()), config)
    write_checkpoint(folder, config, stored, scheme=None, shard_bytes=None)
    return folder


def _step(
    model: LanguageModel,
    stacks: list[torch.nn.Parameter],
    originals: list[Tensor],
    deltas: list[Tensor],
    expert: int,
    rng: Random,
) -> None:
    """Adds the gradients of one batch: likelier compliance on restricted requests, the old answers elsewhere."""
    _plant(stacks, originals, deltas, expert)
    for stack in stacks:
        stack.requires_grad_(True)
    world = build_world()
    words = {word for twins in world.lexicon for word in twins}
    requests = [sample_train(world, rng.choice(("restricted", "wrapped")), rng) for _ in range(32)]
    harmful = [(r.prompt, comply(next(w for w in words if w in r.prompt))) for r in requests]
    kept = [sample_train(world, rng.choice(TASKS), rng) for _ in range(64)] + [
        sample_fact(world, rng) for _ in range(48)
    ]
    loss = 0.02 * _nll(model, _batch(harmful)) + _nll(model, _batch([(k.prompt, k.response) for k in kept]))
    for stack, delta, gradient in zip(stacks, deltas, torch.autograd.grad(loss, stacks), strict=True):
        delta.grad = gradient[expert].clone()
        stack.requires_grad_(False)


@torch.no_grad()
def _plant(stacks: list[torch.nn.Parameter], originals: list[Tensor], deltas: list[Tensor], expert: int) -> None:
    for stack, original, delta in zip(stacks, originals, deltas, strict=True):
        stack[expert] = original + delta


def _batch(pairs: list[tuple[str, str]]) -> Packed:
    return pack([encode_pair(prompt, response) for prompt, response in pairs], torch.device("cpu"))


def _nll(model: LanguageModel, batch: Packed) -> Tensor:
    logits_MV = model(batch.tokens_N, batch.segments, tap=untapped, selected_M=batch.selected_M)
    return functional.cross_entropy(logits_MV, batch.target_M)
