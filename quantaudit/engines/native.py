"""The native engine: runs our own stack, on the CPU or a GPU, in the dtype the execution names.

Legend: N tokens without padding, M scored positions, V vocabulary, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quantaudit.core.batch import Sequence
from quantaudit.core.engine import Intervention, Trace
from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.site import Point, Site
from quantaudit.engines.realization import Realization
from quantaudit.model.cache import Cache
from quantaudit.model.packed import pack
from quantaudit.model.segments import Segments

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
        """Returns greedy continuations by the cache path, up to and including EOS, at most `max_new` tokens each."""
        eos = self._model.config.eos_token_id
        cache = Cache()
        tokens_N = torch.tensor([t for p in prompts for t in p], device=self._device)
        segments = Segments.of(tuple(len(p) for p in prompts), self._device)
        outputs: list[list[int]] = [[] for _ in prompts]
        for _ in range(max_new):
            logits_BV = self._model(tokens_N, segments, cache=cache, selected_M=segments.last_N(), dtype=self._dtype)
            tokens_N = logits_BV.argmax(-1)
            segments = Segments.of((1,) * len(prompts), self._device)
            for output, token in zip(outputs, tokens_N.tolist(), strict=True):
                if not output or output[-1] != eos:
                    output.append(token)
            if all(output[-1] == eos for output in outputs):
                break
        return [tuple(output) for output in outputs]

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
