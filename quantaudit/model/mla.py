"""Gated multi-head latent attention without positions: nothing is rotated, the "rope" part is plain content.

Keys are k_nope from the normalised latent, joined with one k_pe shared by all heads (neither normalised nor
rotated). Scores are scaled by the whole key width. The output is gated elementwise before `o_proj`.

Legend: N tokens, B sequences, T longest, S cached + new tokens, H heads, Q query / key width, V value width,
R latent width, P k_pe width, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.core.site import Point, Site
from quantaudit.model.cache import Cache, LatentCache
from quantaudit.model.config import ModelConfig
from quantaudit.model.linear import Linear
from quantaudit.model.norm import RMSNorm
from quantaudit.model.precision import widen
from quantaudit.model.segments import Segments
from quantaudit.model.tap import Tap


class GatedLatentAttention(nn.Module):
    """One MLA mixer; the cache holds latents and k_pe, not keys and values."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = config.num_attention_heads
        self.nope, self.rope, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.rank = config.kv_lora_rank
        hidden, heads = config.hidden_size, self.num_heads
        self.q_a_proj = Linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.low_rank_norm_eps)
        self.q_b_proj = Linear(config.q_lora_rank, heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = Linear(hidden, self.rank + self.rope)
        self.kv_a_layernorm = RMSNorm(self.rank, config.low_rank_norm_eps)
        self.kv_b_proj = Linear(self.rank, heads * (self.nope + self.value))
        self.g_proj = Linear(hidden, heads * self.value)
        self.o_proj = Linear(heads * self.value, hidden)

    def forward(self, x_ND: Tensor, segments: Segments, cache: Cache | None, tap: Tap) -> Tensor:
        """Returns `[N, D]`; reads and replaces this layer's entry of `cache`."""
        q_BTC = segments.pad(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_ND))))
        latent, k_pe = torch.split(self.kv_a_proj_with_mqa(x_ND), [self.rank, self.rope], dim=-1)
        new_BTR = segments.pad(torch.cat([self.kv_a_layernorm(latent), k_pe], dim=-1))
        past = cache.latent.get(self.layer) if cache is not None else None
        memory = extend_latents(past, new_BTR, segments.lengths)
        if cache is not None:
            memory.latent_BSR = tap(Site(self.layer, Point.LATENT_CACHE), memory.latent_BSR)
            cache.latent[self.layer] = memory
        start_B = torch.zeros_like(memory.lengths_B) if past is None else past.lengths_B
        position_BT = start_B[:, None] + torch.arange(segments.longest, device=x_ND.device)
        o_BTHV = self._attend(self._heads(q_BTC), memory.latent_BSR, position_BT)
        o_NC = segments.unpad(o_BTHV).flatten(1)
        out_ND: Tensor = self.o_proj(o_NC * torch.sigmoid(self.g_proj(x_ND)))
        return out_ND

    def _heads(self, x_BTC: Tensor) -> Tensor:
        return torch.unflatten(x_BTC, -1, (self.num_heads, -1))

    def _attend(self, q_BTHQ: Tensor, latent_BSR: Tensor, position_BT: Tensor) -> Tensor:
        """Returns `[B, T, H, V]`; a query sees the keys at its own position and before."""
        latent, k_pe = torch.split(latent_BSR, [self.rank, self.rope], dim=-1)
        kv_BSHC = self._heads(self.kv_b_proj(latent))
        k_nope, v_BSHV = torch.split(kv_BSHC, [self.nope, self.value], dim=-1)
        k_BSHQ = torch.cat([k_nope, k_pe.unsqueeze(2).expand(*k_nope.shape[:3], -1)], dim=-1)
        scores_BHTS = torch.einsum("bthq,bshq->bhts", q_BTHQ, k_BSHQ) * q_BTHQ.shape[-1] ** -0.5
        hidden_BTS = torch.arange(latent.shape[1], device=latent.device) > position_BT.unsqueeze(-1)
        masked = widen(scores_BHTS).masked_fill(hidden_BTS.unsqueeze(1), float("-inf"))
        return torch.einsum("bhts,bshv->bthv", masked.softmax(-1).to(v_BSHV.dtype), v_BSHV)


def extend_latents(past: LatentCache | None, new_BTR: Tensor, lengths: tuple[int, ...]) -> LatentCache:
    """Returns the cache with each sequence's new latents written behind its old ones; `past` is not changed."""
    length_B = torch.tensor(lengths, device=new_BTR.device)
    if past is None:
        return LatentCache(latent_BSR=new_BTR, lengths_B=length_B)
    total_B = past.lengths_B + length_B
    grown = new_BTR.new_zeros(len(lengths), int(total_B.max()), new_BTR.shape[-1])
    grown[:, : past.latent_BSR.shape[1]] = past.latent_BSR
    for b, start in enumerate(past.lengths_B.tolist()):
        grown[b, start : start + lengths[b]] = new_BTR[b, : lengths[b]]
    return LatentCache(latent_BSR=grown, lengths_B=total_B)
