"""The engine protocol: what opens a realization, runs batches, and shows what happened at the sites.

Tensor types are named here for the type checker only; core itself never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from quantaudit.core.batch import Sequence
from quantaudit.core.site import Point, Site

if TYPE_CHECKING:
    from torch import Tensor

Intervention: TypeAlias = "Callable[[Tensor], Tensor]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one forward showed.

    Attributes:
        logits_MV: fp32 logits at the scored positions of all sequences, in order.
        target_M: The tokens they predict.
        counts_B: Scored positions of each sequence, summing to M.
        lengths_B: Input tokens of each sequence, summing to N.
        sites: Observed values.
    """

    logits_MV: Tensor
    target_M: Tensor
    counts_B: tuple[int, ...]
    lengths_B: tuple[int, ...]
    sites: Mapping[Site, Tensor]


class Engine(Protocol):
    """Runs one realization."""

    def forward(
        self,
        batch: list[Sequence],
        *,
        observe: frozenset[Point] = frozenset(),
        intervene: Mapping[Site, Intervention] | None = None,
    ) -> Trace:
        """Runs a teacher-forced forward; every site of the observed points is kept."""
        ...

    def decode(self, prompts: list[tuple[int, ...]], *, max_new: int) -> list[tuple[int, ...]]:
        """Returns greedy continuations by the cache path, up to and including EOS; tokens only, no logits are kept."""
        ...

    def score_continuations(
        self, prompts: list[tuple[int, ...]], continuations: list[list[tuple[int, ...]]]
    ) -> list[tuple[float, ...]]:
        """Returns ln p of each continuation of each prompt, nats; every prompt is read once.

        Args:
            prompts: At least one prompt of at least one token, start token included.
            continuations: Those of each prompt, each of at least one token; EOS is scored where it is written out.
        """
        ...

    def close(self) -> None:
        """Frees what the engine holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPair:
    """One weight in both models, decoded.

    Attributes:
        name: Module name, such as `layers.3.experts.w1`; for tensors outside matrix products, the parameter path.
        layer: 0-based, or -1.
        is_expert: Whether it is a stack of routed experts, `[E, out, in]`.
        hi: Values of hi.
        lo: Values of lo, same shape.
        wanted: Name of the scheme the recipe or the file declares for lo; `None` for none.
        held: Name of the scheme lo really holds.
    """

    name: str
    layer: int
    is_expert: bool
    hi: Tensor
    lo: Tensor
    wanted: str | None
    held: str | None
