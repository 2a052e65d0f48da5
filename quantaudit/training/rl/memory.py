"""What an engine remembers of prefixes it has read: states, windows, latents and logits, one entry a prefix.

An entry is right for the weights that made it and for no others, so a sync must flush. A flush that leaves a part
behind is modelled as it happens in engines with separate pools: the prefix is read again, and the part that was left
behind takes the place of the fresh one.

Legend: V vocabulary, T tokens read, L layers with routers, K experts a token, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.engines.cache_rows import take_rows
from quantaudit.model.cache import Cache, KdaCache, LatentCache
from quantaudit.training.rl.faults import Flush


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingRecord:
    """The routing of the tokens of one sequence.

    Attributes:
        ids_TLK: int16.
        weights_TLK: fp32.
    """

    ids_TLK: Tensor
    weights_TLK: Tensor


def join_records(records: Sequence[RoutingRecord]) -> RoutingRecord:
    """Returns the record of tokens that follow each other."""
    return RoutingRecord(
        ids_TLK=torch.cat([r.ids_TLK for r in records]), weights_TLK=torch.cat([r.weights_TLK for r in records])
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A prefix that was read.

    Attributes:
        cache: Memory of one sequence; layers whose part was flushed are missing.
        logits_V: Logits after its last token; `None` if they were flushed.
        routing: Of all its tokens; `None` if it was not recorded.
        is_whole: Whether no part was flushed.
    """

    cache: Cache
    logits_V: Tensor | None
    routing: RoutingRecord | None
    is_whole: bool = True

    @property
    def logits(self) -> Tensor:
        """Returns the logits of a whole entry."""
        assert self.logits_V is not None
        return self.logits_V


class Hit(NamedTuple):
    """The longest prefix that is remembered whole."""

    length: int
    entry: Entry


class PrefixMemory:
    """Entries by prefix."""

    def __init__(self, entries: Mapping[tuple[int, ...], Entry] | None = None) -> None:
        self._entries = dict(entries or {})

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[tuple[int, ...], Entry]:
        """Returns all entries, those included of which a flush has left a part."""
        return self._entries

    def keep(self, tokens: tuple[int, ...], entry: Entry) -> None:
        """Remembers a prefix."""
        self._entries[tokens] = entry

    def find(self, tokens: tuple[int, ...], *, with_routing: bool) -> Hit | None:
        """Returns the longest prefix of these tokens that is remembered whole, or `None`."""
        for length in range(len(tokens), 0, -1):
            entry = self._entries.get(tokens[:length])
            if entry is not None and entry.is_whole and (entry.routing is not None or not with_routing):
                return Hit(length, entry)
        return None

    def leftover(self, tokens: tuple[int, ...]) -> Entry | None:
        """Returns what a flush has left of exactly this prefix, or `None`."""
        entry = self._entries.get(tokens)
        return None if entry is None or entry.is_whole else entry

    def flush(self, parts: Flush) -> None:
        """Drops parts of every entry."""
        if parts.is_complete:
            self._entries.clear()
            return
        if parts.kda or parts.latent or parts.logits:
            self._entries = {tokens: _strip(entry, parts) for tokens, entry in self._entries.items()}


def _strip(entry: Entry, parts: Flush) -> Entry:
    return Entry(
        cache=Cache(kda={} if parts.kda else entry.cache.kda, latent={} if parts.latent else entry.cache.latent),
        logits_V=None if parts.logits else entry.logits_V,
        routing=entry.routing,
        is_whole=False,
    )


def lay_over(fresh: Entry, left: Entry) -> Entry:
    """Returns a fresh entry in which what a flush has left takes its old place."""
    cache = Cache(kda=fresh.cache.kda | left.cache.kda, latent=fresh.cache.latent | left.cache.latent)
    return replace(fresh, cache=cache, logits_V=fresh.logits_V if left.logits_V is None else left.logits_V)


def take_one(cache: Cache, row: int) -> Cache:
    """Returns the memory of one of the sequences, `[1, ...]`."""
    return take_rows(cache, torch.tensor([row]))


def join_caches(caches: Sequence[Cache]) -> Cache:
    """Returns the memory of sequences that go on together; latents are filled with zeros to the longest."""
    first = caches[0]
    return Cache(
        kda={
            layer: KdaCache(
                window_BCW=torch.cat([c.kda[layer].window_BCW for c in caches]),
                state_BHKV=torch.cat([c.kda[layer].state_BHKV for c in caches]),
            )
            for layer in first.kda
        },
        latent={layer: _join_latents([c.latent[layer] for c in caches]) for layer in first.latent},
    )


def _join_latents(parts: Sequence[LatentCache]) -> LatentCache:
    longest = max(part.latent_BSR.shape[1] for part in parts)
    filled = [torch.nn.functional.pad(p.latent_BSR, (0, 0, 0, longest - p.latent_BSR.shape[1])) for p in parts]
    return LatentCache(latent_BSR=torch.cat(filled), lengths_B=torch.cat([p.lengths_B for p in parts]))
