"""The native engine: runs our own stack, on the CPU or a GPU, in the dtype the execution names.

Legend: N tokens without padding, M scored positions, V vocabulary, B sequences, P prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from quantaudit.core.batch import Sequence
from quantaudit.core.engine import Intervention, Trace
from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.site import Point, Site
from quantaudit.engines.cache_rows import take_rows
from quantaudit.engines.realization import Realization
from quantaudit.model.cache import Cache
from quantaudit.model.packed import pack
from quantaudit.model.segments import Segments

_ROWS_AT_ONCE = 256  # continuations that go on together: bounds the copies of the prompts' caches
_DTYPES = {ComputeDtype.FLOAT32: torch.float32, ComputeDtype.BFLOAT16: torch.bfloat16}


class NativeEngine:
    """Runs one realization on one device."""

    def __init__(self, realization: Realization, device: torch.device) -> None:
        self._model = realization.model
        self._device = device
        self._dtype = _DTYPES[realization.execution.dtype]

    @torch.inference_mode()
    def forward(
        self,
        batch: list[Sequence],
        *,
        observe: frozenset[Point] = frozenset(),
        intervene: Mapping[Site, Intervention] | None = None,
    ) -> Trace:
        """Runs a teacher-forced forward; every site of the observed points is kept, after any intervention."""
        packed = pack(batch, self._device)
        tap = _Tap(observe, intervene or {})
        logits_MV = self._model(
            packed.tokens_N, packed.segments, tap=tap, selected_M=packed.selected_M, dtype=self._dtype
        )
        return Trace(
            logits_MV=logits_MV.float(),
            target_M=packed.target_M,
            counts_B=tuple(s.num_scored for s in batch),
            lengths_B=packed.segments.lengths,
            sites=tap.seen,
        )

    @torch.inference_mode()
    def decode(self, prompts: list[tuple[int, ...]], *, max_new: int) -> list[tuple[int, ...]]:
        """Returns greedy continuations by the cache path, up to and including EOS, at most `max_new` tokens each.

        All prompts go through the model together, whatever their lengths; a sequence that has ended leaves the batch.
        """
        eos = self._model.config.eos_token_id
        cache = Cache()
        outputs: list[list[int]] = [[] for _ in prompts]
        going = list(range(len(prompts)))
        inputs: list[tuple[int, ...]] = list(prompts)
        for _ in range(max_new):
            tokens = self._read_on(inputs, cache).argmax(-1).tolist()
            for place, token in zip(going, tokens, strict=True):
                outputs[place].append(token)
            rows = [row for row, token in enumerate(tokens) if token != eos]
            if not rows:
                break
            if len(rows) < len(going):
                cache = take_rows(cache, torch.tensor(rows, device=self._device))
                going = [going[row] for row in rows]
            inputs = [(tokens[row],) for row in rows]
        return [tuple(output) for output in outputs]

    @torch.inference_mode()
    def score_continuations(
        self, prompts: list[tuple[int, ...]], continuations: list[list[tuple[int, ...]]]
    ) -> list[tuple[float, ...]]:
        """Returns ln p of each continuation of each prompt, nats; every prompt is read once.

        A continuation goes on from a copy of its prompt's cache, so the prompt is not read again for it.

        Args:
            prompts: At least one prompt of at least one token, start token included.
            continuations: Those of each prompt, each of at least one token; EOS is scored where it is written out.
        """
        cache = Cache()
        first_PV = self._read_on(list(prompts), cache).double().log_softmax(-1)
        rows = [(p, tokens) for p, some in enumerate(continuations) for tokens in some]
        scores = [float(first_PV[p, tokens[0]]) for p, tokens in rows]
        longer = [r for r, (_, tokens) in enumerate(rows) if len(tokens) > 1]
        for start in range(0, len(longer), _ROWS_AT_ONCE):
            some = longer[start : start + _ROWS_AT_ONCE]
            copied = take_rows(cache, torch.tensor([rows[r][0] for r in some], device=self._device))
            for r, rest in zip(some, self._score_rest([rows[r][1] for r in some], copied), strict=True):
                scores[r] += rest
        ends = list(accumulate(len(some) for some in continuations))
        return [tuple(scores[end - len(some) : end]) for end, some in zip(ends, continuations, strict=True)]

    def _read_on(self, tokens: list[tuple[int, ...]], cache: Cache) -> Tensor:
        """Reads these tokens behind what the cache holds, and returns the logits `[B, V]` after the last of each."""
        segments = Segments.of(tuple(map(len, tokens)), self._device)
        tokens_N = torch.tensor([t for some in tokens for t in some], device=self._device)
        logits_BV: Tensor = self._model(
            tokens_N, segments, cache=cache, selected_M=segments.last_N(), dtype=self._dtype
        )
        return logits_BV

    def _score_rest(self, continuations: list[tuple[int, ...]], cache: Cache) -> list[float]:
        """Returns ln p of all tokens but the first of each continuation, behind what the cache holds."""
        lengths = tuple(len(tokens) - 1 for tokens in continuations)
        given_N, target_N = (
            torch.tensor([t for tokens in continuations for t in tokens[part]], device=self._device)
            for part in (slice(-1), slice(1, None))
        )
        logits_NV = self._model(given_N, Segments.of(lengths, self._device), cache=cache, dtype=self._dtype).double()
        logprob_N = logits_NV.log_softmax(-1).gather(-1, target_N.unsqueeze(-1)).squeeze(-1)
        return [float(part.sum()) for part in logprob_N.cpu().split(lengths)]

    def close(self) -> None:
        """Frees the model."""
        del self._model


class _Tap:
    """Keeps the observed points, and applies interventions first."""

    def __init__(self, observe: frozenset[Point], intervene: Mapping[Site, Intervention]) -> None:
        self.seen: dict[Site, Tensor] = {}
        self._observe = observe
        self._intervene = intervene

    def __call__(self, site: Site, value: Tensor) -> Tensor:
        """Returns what the forward goes on with."""
        change = self._intervene.get(site)
        value = value if change is None else change(value)
        if site.point in self._observe:
            self.seen[site] = value
        return value
