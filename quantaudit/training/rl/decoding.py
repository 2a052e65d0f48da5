"""Decoding by the cache path: prefixes are read once, then one token a step for all sequences together.

The engine and the trainer's replay of it run this code, and so does scoring: a forced continuation goes the way that a
drawn one goes, and a canary is a forced continuation whose logits are kept.

Legend: V vocabulary, R rows going on, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.engines.cache_rows import take_rows
from quantaudit.model.cache import Cache
from quantaudit.training.rl.memory import (
    Entry,
    PrefixMemory,
    RoutingRecord,
    join_caches,
    join_records,
    lay_over,
    take_one,
)
from quantaudit.training.rl.sampling import Sampling, draw_tokens, draw_uniform, reported_logprobs
from quantaudit.training.rl.serving import ReadOut, Served, read_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be continued.

    Attributes:
        key: Seeds its random draws.
        tokens: What is read first: a prompt with its start token, and whatever was written of it earlier.
        position: Tokens written earlier.
        max_new: Most tokens that are written now.
        forced: A continuation to be scored instead of drawn; empty to draw.
    """

    key: str
    tokens: tuple[int, ...]
    position: int = 0
    max_new: int
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is returned beside tokens and log-probabilities.

    Attributes:
        routing: The routing of every token that was read.
        logits: The logits that every token was taken from.
        memory: Unfinished sequences are remembered, to go on without being read again.
    """

    routing: bool = False
    logits: bool = False
    memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Continuation:
    """What was written behind one request.

    Attributes:
        tokens: Written tokens, the end token included.
        logprobs: Of each, nats, as declared by the sampling.
        is_finished: Whether the end token was written.
        routing: Of the tokens read: all but the last one written.
        logits_TV: fp32, what each was taken from.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_finished: bool
    routing: RoutingRecord | None = None
    logits_TV: Tensor | None = None


def decode(
    served: Served, requests: Sequence[Request], sampling: Sampling, want: Want, memory: PrefixMemory
) -> list[Continuation]:
    """Continues every request, as many together as the execution allows, in their order."""
    size = served.execution.max_batch
    parts = [list(requests[start : start + size]) for start in range(0, len(requests), size)]
    return [done for part in parts for done in _Batch(served, part, sampling, want, memory).run()]


class _Row:
    """One sequence that is being written."""

    def __init__(self, request: Request, entry: Entry) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.logits: list[Tensor] = []
        self.routing = [entry.routing] if entry.routing is not None else []
        self.is_finished = False

    @property
    def is_going(self) -> bool:
        return not self.is_finished and len(self.tokens) < self.limit

    @property
    def limit(self) -> int:
        return len(self.request.forced) or self.request.max_new

    def uniform(self) -> float:
        return draw_uniform(self.request.key, self.request.position + len(self.tokens))

    def take(self, token: int, logprob: float, eos: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.is_finished = token == eos and not (self.request.forced and len(self.tokens) < self.limit)


class _Batch:
    """The sequences that go through the model together."""

    def __init__(
        self, served: Served, requests: list[Request], sampling: Sampling, want: Want, memory: PrefixMemory
    ) -> None:
        self._served, self._sampling, self._want, self._memory = served, sampling, want, memory
        self._eos = served.model.config.eos_token_id
        entries = self._read_prefixes(requests)
        self._rows = [_Row(request, entry) for request, entry in zip(requests, entries, strict=True)]
        self._cache = join_caches([entry.cache for entry in entries])
        self._logits_RV = torch.stack([entry.logits for entry in entries])

    def run(self) -> list[Continuation]:
        """Writes until every sequence has ended."""
        going = list(self._rows)
        while True:
            self._choose(going)
            stay = [place for place, row in enumerate(going) if row.is_going]
            self._remember(going)
            if not stay:
                return [self._finish(row) for row in self._rows]
            if len(stay) < len(going):
                self._cache = take_rows(self._cache, torch.tensor(stay))
                going = [going[place] for place in stay]
            self._step(going)

    def _choose(self, going: list[_Row]) -> None:
        """Takes a token for every row from the logits."""
        wide_RV = self._logits_RV.double()
        if going[0].request.forced:
            token_R = torch.tensor([row.request.forced[len(row.tokens)] for row in going])
        else:
            uniform_R = torch.tensor([row.uniform() for row in going], dtype=torch.float64)
            token_R = draw_tokens(wide_RV, self._sampling, uniform_R)
        logprobs = reported_logprobs(wide_RV, self._sampling, token_R).tolist()
        for place, (row, token, logprob) in enumerate(zip(going, token_R.tolist(), logprobs, strict=True)):
            if self._want.logits:
                row.logits.append(self._logits_RV[place])
            row.take(token, logprob, self._eos)

    def _step(self, going: list[_Row]) -> None:
        out = read_on(self._served, [(row.tokens[-1],) for row in going], self._cache, with_routing=self._want.routing)
        self._logits_RV = out.logits_BV
        for place, row in enumerate(going):
            if out.routing is not None:
                row.routing.append(_tokens_of(out.routing, place, place + 1))

    def _remember(self, going: list[_Row]) -> None:
        """Keeps the memory of rows that stop before their end: all that was read, without the token written last."""
        if not self._want.memory:
            return
        for place, row in enumerate(going):
            if row.is_going or row.is_finished:
                continue
            entry = Entry(
                cache=take_one(self._cache, place),
                logits_V=self._logits_RV[place],
                routing=join_records(row.routing) if self._want.routing else None,
            )
            self._memory.keep((*row.request.tokens, *row.tokens[:-1]), entry)

    def _finish(self, row: _Row) -> Continuation:
        return Continuation(
            tokens=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            is_finished=row.is_finished,
            routing=join_records(row.routing) if self._want.routing else None,
            logits_TV=torch.stack(row.logits) if self._want.logits else None,
        )

    def _read_prefixes(self, requests: list[Request]) -> list[Entry]:
        """Returns the entry of every request's prefix; equal prefixes are read once, remembered ones not at all."""
        found: dict[tuple[int, ...], Entry] = {}
        fresh: list[tuple[int, ...]] = []
        longer: list[tuple[tuple[int, ...], int, Entry]] = []
        for tokens in dict.fromkeys(request.tokens for request in requests):
            hit = self._memory.find(tokens, with_routing=self._want.routing)
            if hit is None:
                fresh.append(tokens)
            elif hit.length < len(tokens):
                longer.append((tokens, hit.length, hit.entry))
            else:
                found[tokens] = hit.entry
        found |= self._read_fresh(fresh) | self._read_rest(longer)
        return [found[request.tokens] for request in requests]

    def _read_fresh(self, prefixes: list[tuple[int, ...]]) -> dict[tuple[int, ...], Entry]:
        if not prefixes:
            return {}
        cache = Cache()
        out = read_on(self._served, prefixes, cache, with_routing=self._want.routing)
        entries = _entries(out, cache, [len(p) for p in prefixes])
        for place, tokens in enumerate(prefixes):
            left = self._memory.leftover(tokens)
            if left is not None:
                entries[place] = lay_over(entries[place], left)
            self._memory.keep(tokens, entries[place])
        return dict(zip(prefixes, entries, strict=True))

    def _read_rest(self, longer: list[tuple[tuple[int, ...], int, Entry]]) -> dict[tuple[int, ...], Entry]:
        """Reads what follows prefixes that are remembered."""
        if not longer:
            return {}
        cache = join_caches([entry.cache for _, _, entry in longer])
        rest = [tokens[length:] for tokens, length, _ in longer]
        out = read_on(self._served, rest, cache, with_routing=self._want.routing)
        entries = _entries(out, cache, [len(tokens) for tokens in rest], [entry.routing for _, _, entry in longer])
        return {tokens: entry for (tokens, _, _), entry in zip(longer, entries, strict=True)}


def _entries(
    out: ReadOut, cache: Cache, lengths: list[int], before: list[RoutingRecord | None] | None = None
) -> list[Entry]:
    """Cuts what was read together into entries, one a sequence."""
    entries = []
    start = 0
    for place, length in enumerate(lengths):
        routing = None if out.routing is None else _tokens_of(out.routing, start, start + length)
        earlier = None if before is None else before[place]
        if routing is not None and earlier is not None:
            routing = join_records([earlier, routing])
        entries.append(Entry(cache=take_one(cache, place), logits_V=out.logits_BV[place], routing=routing))
        start += length
    return entries


def _tokens_of(routing: RoutingRecord, start: int, stop: int) -> RoutingRecord:
    return RoutingRecord(ids_TLK=routing.ids_TLK[start:stop], weights_TLK=routing.weights_TLK[start:stop])
