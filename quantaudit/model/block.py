"""One decoder layer, and the residual stream that runs through all of them.

Between layers travel the prefix (the running sum of the current block only) and the bank of finished block
sums. A layer that opens a block pushes the unmixed prefix and starts a new one; mixtures are read, never added.

Legend: N tokens, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quantaudit.core.site import Point, Site
from quantaudit.model.attn_residual import NormWeight, PseudoQuery, mix_sources
from quantaudit.model.cache import Cache
from quantaudit.model.config import ModelConfig
from quantaudit.model.kda import KimiDeltaAttention
from quantaudit.model.mla import GatedLatentAttention
from quantaudit.model.moe import LatentMoe, Mlp
from quantaudit.model.norm import RMSNorm
from quantaudit.model.segments import Segments
from quantaudit.model.tap import Tap


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The residual stream: the current block's sum, and the finished blocks' sums, oldest first."""

    prefix_ND: Tensor
    bank: tuple[Tensor, ...]


class DecoderLayer(nn.Module):
    """One layer: a sequence mixer and an MLP or MoE, each reading a mixture of the stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.eps = config.rms_norm_eps
        self.opens_block = config.opens_block(layer)
        hidden = config.hidden_size
        self.self_attention_res_norm, self.self_attention_res_proj = NormWeight(hidden), PseudoQuery(hidden)
        self.mlp_res_norm, self.mlp_res_proj = NormWeight(hidden), PseudoQuery(hidden)
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.self_attn = (
            KimiDeltaAttention(config, layer) if config.is_kda_layer(layer) else GatedLatentAttention(config, layer)
        )
        if config.is_moe_layer(layer):
            self.block_sparse_moe = LatentMoe(config, layer)
        else:
            self.mlp = Mlp(config, config.intermediate_size)
        self.is_moe = config.is_moe_layer(layer)

    def forward(self, stream: Stream, segments: Segments, cache: Cache | None, tap: Tap) -> Stream:
        """Returns the stream after this layer."""
        bank, prefix = list(stream.bank), stream.prefix_ND
        attn_in = prefix
        if bank:
            attn_in = mix_sources(bank, prefix, self.self_attention_res_norm, self.self_attention_res_proj, self.eps)
        attn_in = tap(Site(self.layer, Point.ATTN_IN), attn_in)
        attn_out = self.self_attn(self.input_layernorm(attn_in), segments, cache, tap)
        attn_out = tap(Site(self.layer, Point.ATTN_OUT), attn_out)
        if self.opens_block:
            bank.append(prefix)
            prefix = attn_out
        else:
            prefix = prefix + attn_out
        mlp_in = mix_sources(bank, prefix, self.mlp_res_norm, self.mlp_res_proj, self.eps)
        mlp_in = tap(Site(self.layer, Point.MLP_IN), mlp_in)
        mlp_out = tap(Site(self.layer, Point.MLP_OUT), self._mlp(self.post_attention_layernorm(mlp_in), tap))
        return Stream(prefix_ND=tap(Site(self.layer, Point.HIDDEN), prefix + mlp_out), bank=tuple(bank))

    def _mlp(self, x_ND: Tensor, tap: Tap) -> Tensor:
        out_ND: Tensor = self.block_sparse_moe(x_ND, tap) if self.is_moe else self.mlp(x_ND)
        return out_ND
