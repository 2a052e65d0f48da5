"""A tiny model over the bytes of the closed world, the settings of short runs, and a loop around an engine.

Expert matrices are `[8, 32, 64]` and `[8, 64, 32]`; weights are of order one, so that routing is not trivial. What it
writes is never right, so answers are worth what a coin says, and a large rate moves codes in every step.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from quantaudit.core.recipe import Recipe, Rule
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.lm import LanguageModel
from quantaudit.probes import tokenizer
from quantaudit.probes.world import World, build_world
from quantaudit.training.rl.engine import Engine, RolloutEngine
from quantaudit.training.rl.faults import Faults, NoFaults
from quantaudit.training.rl.run import RunRequest, Start, run_loop
from quantaudit.training.rl.settings import Reward, RlSettings
from tests.model.small_models import build_model

TINY = ModelConfig(
    vocab_size=tokenizer.VOCAB_SIZE,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    attn_res_block_size=3,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    moe_intermediate_size=32,
    routed_expert_hidden_size=64,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    linear_attn_config=LinearAttentionConfig(full_attn_layers=(2,), num_heads=2, head_dim=16),
    bos_token_id=tokenizer.BOS,
    eos_token_id=tokenizer.EOS,
    pad_token_id=tokenizer.PAD,
)
EXPERTS = "layers.*.experts.w[123]"
W4A8 = Recipe(name="w4a8", rules=(Rule(match=EXPERTS, weight="mxfp4-even", activation="mxfp8-e4m3-even"),))
SHORT = RlSettings(
    steps=3,
    prompts_per_step=3,
    group_size=2,
    shares={"two-step": 0.7, "recall": 0.3},
    reward=Reward.COIN,
    learning_rate=5e-3,
    warmup_steps=1,
    transport_every=2,
    floor_every=2,
    save_every=1,
    bucket_bytes=4096,
    held_out=0,
    confirm=0,
    timeout_seconds=60.0,
)


def tiny_model(seed: int = 0) -> LanguageModel:
    """Returns the model; its weights are exact in bf16, as those of a checkpoint are."""
    model = build_model(TINY, seed, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    return model


@lru_cache(maxsize=1)
def world() -> World:
    """Returns the closed world."""
    return build_world()


def request(
    folder: Path,
    settings: RlSettings = SHORT,
    *,
    faults: Faults | None = None,
    recipe: Recipe = W4A8,
    resume: bool = False,
) -> RunRequest:
    """Returns a run of the tiny model."""
    return RunRequest(
        folder=folder,
        start=Start(model=tiny_model(), digest="tiny"),
        recipe=recipe,
        settings=settings,
        world=world(),
        faults=faults or NoFaults(),
        resume=resume,
    )


def in_process() -> Engine:
    """Returns an engine in this process."""
    return RolloutEngine(TINY)


def run_here(wanted: RunRequest) -> None:
    """Runs with an engine in this process."""
    run_loop(wanted, in_process)
