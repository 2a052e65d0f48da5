"""All that an engine holds, as a message, to put another engine in its place: loaded weights, layouts, prefixes.

An engine that is synced honestly needs none of it: every weight arrives anew, every layout is built again, and no
prefix outlives its weights. Where a mismatch is planted, what the engine holds is the mismatch. Engines that cannot
tell what they hold are loaded anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from quantaudit.core.serial import Frozen
from quantaudit.model.cache import Cache, KdaCache, LatentCache
from quantaudit.training.rl.memory import Entry, PrefixMemory, RoutingRecord
from quantaudit.training.rl.state import EngineState
from quantaudit.training.rl.wire import Message, read_state, write_state

_ENTRY = "entry."


class _EntryHead(Frozen):
    """One prefix; tensors by the name that they have in the message.

    Attributes:
        tokens: The prefix.
        kda: Window and state by layer.
        latent: Latents and lengths by layer.
        logits: Logits after the last token.
        routing: Ids and weights.
        is_whole: Whether no part was flushed.
    """

    tokens: tuple[int, ...]
    kda: dict[int, tuple[str, str]]
    latent: dict[int, tuple[str, str]]
    logits: str | None
    routing: tuple[str, str] | None
    is_whole: bool


class _EngineHead(Frozen):
    entries: tuple[_EntryHead, ...]


@runtime_checkable
class Keeping(Protocol):
    """An engine that tells all that it holds, awake or asleep, and that can go on with it."""

    def checkpoint(self, *, with_memory: bool) -> Message:
        """Returns all that it holds; of prefixes only if they are wanted."""
        ...

    def restore(self, held: Message) -> None:
        """Holds what another engine did, instead of all that it holds."""
        ...


class KeptEngine(NamedTuple):
    """What `read_engine` returns."""

    state: EngineState
    memory: PrefixMemory


def write_engine(state: EngineState, memory: PrefixMemory) -> Message:
    """Returns the message."""
    told = write_state(state)
    tensors = dict(told.tensors)
    entries = _EngineHead(entries=tuple(_write_entry(tokens, e, tensors) for tokens, e in memory.entries.items()))
    return Message({**told.head, **entries.model_dump(mode="json")}, tensors)


def _write_entry(tokens: tuple[int, ...], entry: Entry, tensors: dict[str, Tensor]) -> _EntryHead:
    def put(tensor: Tensor) -> str:
        name = f"{_ENTRY}{len(tensors)}"
        tensors[name] = tensor.detach().clone()  # entries that were read together share memory
        return name

    routing = entry.routing
    return _EntryHead(
        tokens=tokens,
        kda={n: (put(held.window_BCW), put(held.state_BHKV)) for n, held in entry.cache.kda.items()},
        latent={n: (put(held.latent_BSR), put(held.lengths_B)) for n, held in entry.cache.latent.items()},
        logits=None if entry.logits_V is None else put(entry.logits_V),
        routing=None if routing is None else (put(routing.ids_TLK), put(routing.weights_TLK)),
        is_whole=entry.is_whole,
    )


def read_engine(message: Message) -> KeptEngine:
    """Returns what an engine held.

    Raises:
        ValueError: If the message is none of `write_engine`.
        LookupError: If a tensor is missing.
        AssertionError: If a weight is described in another form.
    """
    head = _EngineHead.model_validate({"entries": message.head.get("entries")})
    memory = PrefixMemory({one.tokens: _read_entry(one, message.tensors) for one in head.entries})
    return KeptEngine(read_state(message), memory)


def _read_entry(head: _EntryHead, tensors: Mapping[str, Tensor]) -> Entry:
    kda = {n: KdaCache(window_BCW=tensors[a], state_BHKV=tensors[b]) for n, (a, b) in head.kda.items()}
    latent = {n: LatentCache(latent_BSR=tensors[a], lengths_B=tensors[b]) for n, (a, b) in head.latent.items()}
    routing = None
    if head.routing is not None:
        routing = RoutingRecord(ids_TLK=tensors[head.routing[0]], weights_TLK=tensors[head.routing[1]])
    return Entry(
        cache=Cache(kda=kda, latent=latent),
        logits_V=None if head.logits is None else tensors[head.logits],
        routing=routing,
        is_whole=head.is_whole,
    )
