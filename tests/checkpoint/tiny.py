"""A model in which all sizes differ, its random state, and checkpoints of it on disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Json
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.lm import LanguageModel

TINY = ModelConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=5,
    num_attention_heads=3,
    intermediate_size=36,
    first_k_dense_replace=1,
    moe_layer_freq=2,
    activation_situ_beta=3.0,
    activation_situ_linear_beta=None,
    attn_res_block_size=2,
    rms_norm_eps=2e-5,
    initializer_range=0.03,
    num_experts=6,
    num_experts_per_token=2,
    num_shared_experts=2,
    moe_intermediate_size=32,
    routed_expert_hidden_size=64,
    latent_moe_use_norm=True,
    moe_renormalize=False,
    routed_scaling_factor=1.5,
    q_lora_rank=10,
    kv_lora_rank=12,
    qk_nope_head_dim=6,
    qk_rope_head_dim=4,
    v_head_dim=7,
    linear_attn_config=LinearAttentionConfig(
        full_attn_layers=(2, 5), num_heads=5, head_dim=8, short_conv_kernel_size=3, gate_lower_bound=-4.0
    ),
    bos_token_id=37,
    eos_token_id=38,
    pad_token_id=39,
    max_position_embeddings=100,
)
WEIGHTS = "model.safetensors"
LAYER_2 = "language_model.model.layers.2.block_sparse_moe.experts"


def random_state(config: ModelConfig = TINY, *, seed: int = 0) -> dict[str, Tensor]:
    """Returns random parameters in the dtypes of the layout."""
    generator = torch.Generator().manual_seed(seed)
    model = LanguageModel(config)
    drawn = ((name, torch.randn(p.shape, generator=generator)) for name, p in model.named_parameters())
    return dict(round_to_storage(drawn, config))


def save(
    path: Path,
    *,
    config: ModelConfig = TINY,
    scheme: Scheme | None = None,
    shard_bytes: int | None = None,
    seed: int = 0,
) -> Path:
    """Writes a random checkpoint and returns its folder."""
    state = random_state(config, seed=seed)
    write_checkpoint(path, config, state.items(), scheme=scheme, shard_bytes=shard_bytes)
    return path


def edit_json(path: Path, change: Callable[[dict[str, Json]], object]) -> None:
    """Rewrites a JSON file after a change to its object."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_tensors(path: Path, change: Callable[[dict[str, tuple[str, list[int], bytes]]], object]) -> None:
    """Rewrites a safetensors file after a change to its tensors: name to (dtype, shape, bytes)."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {
        name: (e["dtype"], e["shape"], data[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]])
        for name, e in header.items()
    }
    change(tensors)
    path.write_bytes(file_of(tensors))


def file_of(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """Returns the bytes of a safetensors file, written here independently of the project's own writer."""
    header: dict[str, Json] = {}
    position = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(raw)]}
        position += len(raw)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values())
