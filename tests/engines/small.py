"""A small model over the bytes of the closed world: its checkpoints on disk, and sequences to run through it.

Weights are of order one, so that routing, margins and errors are not trivial. Expert matrices are `[8, 32, 64]` and
`[8, 64, 32]`: every bundled recipe fits them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.batch import Sequence
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.scheme import Scheme
from quantaudit.engines.opening import open_realization
from quantaudit.engines.realization import Realization
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.probes import tokenizer
from tests.model.small_models import build_model

SMALL = ModelConfig(
    vocab_size=tokenizer.VOCAB_SIZE,
    hidden_size=32,
    num_hidden_layers=4,
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
    linear_attn_config=LinearAttentionConfig(full_attn_layers=(2, 4), num_heads=2, head_dim=16),
    bos_token_id=tokenizer.BOS,
    eos_token_id=tokenizer.EOS,
    pad_token_id=tokenizer.PAD,
)
CPU = torch.device("cpu")
EXPERTS = "layers.*.experts.w[123]"
WIDEST = 64  # terms of the longest sum: the latent, or the tokens of a sequence


@lru_cache(maxsize=4)
def small_state(seed: int = 0) -> tuple[tuple[str, Tensor], ...]:
    """Returns the parameters in the dtypes of the layout."""
    model = build_model(SMALL, seed, torch.float32)
    return tuple(round_to_storage(((n, p.detach()) for n, p in model.named_parameters()), SMALL))


def write_small(
    path: Path,
    *,
    scheme: Scheme | None = None,
    shard_bytes: int | None = None,
    changed: dict[str, Tensor] | None = None,
) -> Path:
    """Writes a checkpoint, some parameters changed, and returns its folder."""
    state = dict(small_state()) | (changed or {})
    write_checkpoint(path, SMALL, state.items(), scheme=scheme, shard_bytes=shard_bytes)
    return path


def open_small(path: Path) -> Realization:
    """Opens a checkpoint as hi."""
    return open_realization(open_checkpoint(path), CPU)


def recipe(*rules: Rule, requantize: bool = False) -> Recipe:
    """Returns a recipe of these rules."""
    return Recipe(name="test", rules=rules, requantize=requantize)


def experts_in(weight: str | None = None, activation: str | None = None, *, requantize: bool = False) -> Recipe:
    """Returns a recipe for all routed experts."""
    return recipe(Rule(match=EXPERTS, weight=weight, activation=activation), requantize=requantize)


def draw_sequences(*lengths: int, seed: int = 0) -> list[Sequence]:
    """Returns random sequences; the last third of each is scored."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lengths]
    return [Sequence(tokens=(tokenizer.BOS, *ids[1:]), scored_from=max(1, 2 * len(ids) // 3)) for ids in drawn]
