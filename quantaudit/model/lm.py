"""The language model: embeddings, layers, the output attention residual, the final norm, the head.

Legend: N tokens without padding, M selected positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.core.site import MODEL_LEVEL, Point, Site
from quantaudit.model.attn_residual import NormWeight, PseudoQuery, mix_sources
from quantaudit.model.block import DecoderLayer, Stream
from quantaudit.model.cache import Cache
from quantaudit.model.config import ModelConfig
from quantaudit.model.linear import Linear
from quantaudit.model.norm import RMSNorm
from quantaudit.model.segments import Segments
from quantaudit.model.tap import Tap, untapped


class Backbone(nn.Module):
    """Everything below the head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        # Given a weight, Embedding does not draw one; on the meta device that draw costs seconds of imports.
        empty = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=empty)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.output_attn_res_norm = NormWeight(config.hidden_size)
        self.output_attn_res_proj = PseudoQuery(config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, tokens_N: Tensor, segments: Segments, cache: Cache | None, tap: Tap, dtype: torch.dtype
    ) -> Tensor:
        """Returns the mixed stream after the last layer, `[N, D]`, before the final norm."""
        stream = Stream(prefix_ND=self.embed_tokens(tokens_N).to(dtype), bank=())
        for layer in self.layers:
            stream = layer(stream, segments, cache, tap)
        mixed = mix_sources(
            list(stream.bank), stream.prefix_ND, self.output_attn_res_norm, self.output_attn_res_proj, self.eps
        )
        return tap(Site(MODEL_LEVEL, Point.FINAL_MIX), mixed)


class LanguageModel(nn.Module):
    """The text model of Kimi K3, in the dtype it is asked to compute in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        tokens_N: Tensor,
        segments: Segments,
        *,
        cache: Cache | None = None,
        tap: Tap = untapped,
        selected_M: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Returns logits `[M, V]` in `dtype`, unscaled.

        Args:
            tokens_N: The tokens of all sequences, one after the other, without padding.
            segments: Their lengths.
            cache: Memory of earlier tokens, replaced in place; `None` for a fresh forward.
            tap: Sees and may replace every observable value.
            selected_M: Positions in `[0, N)` whose logits are wanted; all when `None`.
            dtype: Compute dtype of everything that is not widened; narrower weights are widened exactly.
        """
        hidden_ND = self.model(tokens_N, segments, cache, tap, dtype)
        wanted = hidden_ND if selected_M is None else hidden_ND.index_select(0, selected_M)
        return tap(Site(MODEL_LEVEL, Point.LOGITS), self.lm_head(self.model.norm(wanted)))
