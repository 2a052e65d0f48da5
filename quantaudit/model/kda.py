"""Kimi Delta Attention: convolved q, k, v; bounded decay; the delta rule; a gated norm on the way out.

g = L sigmoid(exp(A_log) (z + dt_bias)): the bias is inside the product, and L bounds the decay from below.

In bf16 the released code rounds more than this: the normalised q and k before its chunk kernel (not before its
recurrent one), and the output before `o_norm`. Here both forms stay fp32, so that decoding goes on as prefill began.

Legend: N tokens, B sequences, T longest, H heads, K head width, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.core.site import Point, Site
from quantaudit.model.cache import Cache, KdaCache
from quantaudit.model.config import ModelConfig
from quantaudit.model.conv import ShortConv, slide_window
from quantaudit.model.delta import largest_chunk, run_chunked, run_recurrent
from quantaudit.model.linear import Linear
from quantaudit.model.norm import RMSNorm
from quantaudit.model.precision import widen
from quantaudit.model.segments import Segments
from quantaudit.model.tap import Tap


class KimiDeltaAttention(nn.Module):
    """One KDA mixer."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        kda = config.linear_attn_config
        width = kda.num_heads * kda.head_dim
        self.layer = layer
        self.config = kda
        self.q_proj = Linear(config.hidden_size, width)
        self.k_proj = Linear(config.hidden_size, width)
        self.v_proj = Linear(config.hidden_size, width)
        self.q_conv1d = ShortConv(width, kda.short_conv_kernel_size)
        self.k_conv1d = ShortConv(width, kda.short_conv_kernel_size)
        self.v_conv1d = ShortConv(width, kda.short_conv_kernel_size)
        self.b_proj = Linear(config.hidden_size, kda.num_heads)
        self.f_a_proj = Linear(config.hidden_size, kda.head_dim)
        self.f_b_proj = Linear(kda.head_dim, width)
        self.g_proj = Linear(config.hidden_size, width)
        self.A_log = nn.Parameter(torch.zeros(kda.num_heads))
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.o_norm = RMSNorm(kda.head_dim, config.rms_norm_eps)
        self.o_proj = Linear(width, config.hidden_size)

    def forward(self, x_ND: Tensor, segments: Segments, cache: Cache | None, tap: Tap) -> Tensor:
        """Returns `[N, D]`; reads and replaces this layer's entry of `cache`."""
        memory = cache.kda.get(self.layer) if cache is not None else None
        inputs = [segments.pad(p(x_ND)) for p in (self.q_proj, self.k_proj, self.v_proj)]
        windows = memory.window_BCW.chunk(3, dim=1) if memory is not None else (None, None, None)
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        q, k, v = (self._heads(c(x, w)) for c, x, w in zip(convs, inputs, windows, strict=True))
        g_BTHK = segments.pad(self.log_decay(self.f_b_proj(self.f_a_proj(x_ND))))
        beta_BTH = segments.pad(torch.sigmoid(widen(self.b_proj(x_ND))))
        scale = self.config.head_dim**-0.5
        eps = self.config.qk_l2_eps
        qkvgb = (normalize_l2(q, eps) * scale, normalize_l2(k, eps), widen(v), g_BTHK, beta_BTH)
        state = memory.state_BHKV if memory is not None else None
        if memory is not None and segments.longest == 1:
            mixed = run_recurrent(*qkvgb, state)
        else:
            mixed = run_chunked(*qkvgb, state, chunk=largest_chunk(self.config.gate_lower_bound))
        if cache is not None:
            taps = self.config.short_conv_kernel_size
            slid = slide_window(memory.window_BCW if memory else None, torch.cat(inputs, dim=2), segments.lengths, taps)
            cache.kda[self.layer] = KdaCache(
                window_BCW=tap(Site(self.layer, Point.CONV_WINDOW), slid),
                state_BHKV=tap(Site(self.layer, Point.KDA_STATE), mixed.state_BHKV),
            )
        out_ND: Tensor = self.o_proj(self._gate_out(segments.unpad(mixed.o_BTHV), x_ND))
        return out_ND

    def log_decay(self, z_NC: Tensor) -> Tensor:
        """Returns g in (L, 0), fp32, `[N, H, K]`, from the decay pre-activation `[N, H * K]`."""
        z_NHK = self._heads(widen(z_NC) + widen(self.dt_bias))
        return self.config.gate_lower_bound * torch.sigmoid(widen(self.A_log).exp()[:, None] * z_NHK)

    def _heads(self, x_BTC: Tensor) -> Tensor:
        return torch.unflatten(x_BTC, -1, (self.config.num_heads, self.config.head_dim))

    def _gate_out(self, o_NHV: Tensor, x_ND: Tensor) -> Tensor:
        """Returns norm(o) * sigmoid(g_proj x), widened, cast once."""
        gate_NHV = self._heads(torch.sigmoid(widen(self.g_proj(x_ND))))
        gated_NHV: Tensor = self.o_norm(o_NHV) * gate_NHV
        return gated_NHV.flatten(1).to(x_ND.dtype)


def normalize_l2(x_BTHK: Tensor, eps: float) -> Tensor:
    """Returns x / sqrt(sum(x^2) + eps), widened; the sum, not the mean."""
    wide = widen(x_BTHK)
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
