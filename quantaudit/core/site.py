"""Sites: the named places in a forward pass that every engine can observe and intervene at."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Point(StrEnum):
    """What a value is. Shapes: N tokens of the batch without padding, D hidden, E experts, K experts per token."""

    ROUTER_LOGITS = "router-logits"  # [N, E], before the sigmoid
    TOP_K_IDS = "top-k-ids"  # [N, K] int64, ascending
    GATE_WEIGHTS = "gate-weights"  # [N, K], renormalised and scaled, in the order of the ids
    EXPERT_INPUT = "expert-input"  # [N * K, latent], rows sorted by expert: input of the gate and up GEMMs
    EXPERT_HIDDEN = "expert-hidden"  # [N * K, moe_inter], rows sorted by expert: input of the down GEMM
    COMBINE = "combine"  # [N, latent], weighted sum over the token's experts, before the latent norm
    KDA_STATE = "kda-state"  # [B, H, K, V], after the last token of each sequence
    CONV_WINDOW = "conv-window"  # [B, 3 * H * K, kernel], q | k | v, oldest first
    LATENT_CACHE = "latent-cache"  # [B, T, kv_lora + rope]
    HIDDEN = "hidden"  # [N, D], the residual prefix after a layer
    ATTN_IN = "attn-in"  # [N, D], mixed input of the attention, before its norm
    MLP_IN = "mlp-in"  # [N, D], mixed input of the MLP, before its norm
    ATTN_OUT = "attn-out"  # [N, D]
    MLP_OUT = "mlp-out"  # [N, D]
    FINAL_MIX = "final-mix"  # [N, D], output attention residual, before the final norm
    LOGITS = "logits"  # [M, vocab], at the selected positions


class Site(NamedTuple):
    """A point in one layer (0-based), or in the model as a whole (layer -1)."""

    layer: int
    point: Point


MODEL_LEVEL = -1
