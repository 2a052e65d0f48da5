"""Rows of a cache: the memory of some of its sequences, in any order and as often as wanted.

Decoding drops the sequences that have ended; scoring many continuations of a prompt takes the prompt's row once for
each of them. Rows are always copied, so whatever goes on from them leaves the cache they came from as it was.

Legend: B sequences of the cache, R rows taken.
"""

from __future__ import annotations

from torch import Tensor

from quantaudit.model.cache import Cache, KdaCache, LatentCache


def take_rows(cache: Cache, row_R: Tensor) -> Cache:
    """Returns a cache of its own whose sequence r is sequence `row_R[r]` of the given one.

    Args:
        cache: Stays as it is.
        row_R: int64, each in `[0, B)`; rows may repeat.
    """
    return Cache(
        kda={
            layer: KdaCache(
                window_BCW=memory.window_BCW.index_select(0, row_R),
                state_BHKV=memory.state_BHKV.index_select(0, row_R),
            )
            for layer, memory in cache.kda.items()
        },
        latent={layer: _take_latents(memory, row_R) for layer, memory in cache.latent.items()},
    )


def _take_latents(memory: LatentCache, row_R: Tensor) -> LatentCache:
    """Returns the rows, cut to the longest of them: what lies behind is padding."""
    lengths_R = memory.lengths_B.index_select(0, row_R)
    longest = int(lengths_R.max())
    return LatentCache(latent_BSR=memory.latent_BSR[:, :longest].index_select(0, row_R), lengths_B=lengths_R)
