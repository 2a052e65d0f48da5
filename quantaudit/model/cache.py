"""What decoding carries from call to call: convolution windows and state for KDA, latents for MLA.

Legend: B sequences, C channels, W convolution taps, H heads, K and V head widths, S cached tokens, R latent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True, kw_only=True)
class KdaCache:
    """The recurrent memory of one KDA layer.

    Attributes:
        window_BCW: Last W inputs of the q, k and v convolutions (before the convolution), oldest first.
        state_BHKV: State in fp32, K first (released caches hold the transpose).
    """

    window_BCW: Tensor
    state_BHKV: Tensor


@dataclass(slots=True, kw_only=True)
class LatentCache:
    """The attention memory of one MLA layer.

    Attributes:
        latent_BSR: Normalised latent and unrotated k_pe, concatenated.
        lengths_B: Cached tokens of each sequence; slots beyond are zero.
    """

    latent_BSR: Tensor
    lengths_B: Tensor


@dataclass(slots=True, kw_only=True)
class Cache:
    """The memory of a whole model, by 0-based layer; empty before the first call."""

    kda: dict[int, KdaCache] = field(default_factory=dict)
    latent: dict[int, LatentCache] = field(default_factory=dict)
