"""Where a mismatch can be planted in the loop: one method a point, each of which changes nothing by default.

Every point is given what the honest loop would go on with and returns what it really goes on with. All points act in
the trainer's process; those of the engine (post-load, flush, execution, placement) travel with its commands as data,
and the engine does not know which of them are declared and which are planted. `step` counts steps of the run from 0.

    masters        what is quantized: the bf16 exports of the masters
    layer_set      which weights the served copy is quantized in, and in which scheme
    export         packed weights, as they leave the trainer (not where the engine quantizes on arrival)
    buckets        what travels: may be dropped, held back, replaced by older ones
    post_load      what the engine makes of what it was sent
    flush          which of its memories it drops after a sync
    execution      how it computes (the declaration stays as it is)
    placement      where it looks for its experts

What a set remembers of earlier steps is written down with the state of a run, so a resumed run plants what the
uninterrupted one would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Frozen
from quantaudit.engines.stored import StoredTensor
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.placement import Placement
from quantaudit.training.run_state import Note

# By module name (`layers.3.experts.w1`); tensors where a weight is not quantized.
Packed: TypeAlias = "dict[str, StoredTensor | Tensor]"


class Halves(StrEnum):
    """How gate rows and up rows lie in a fused stack."""

    GATE_FIRST = "gate-first"  # all gate rows, then all up rows: what the kernel reads
    UP_FIRST = "up-first"
    INTERLEAVED = "interleaved"  # gate row, up row, gate row, ...


class PostLoad(Frozen):
    """What the engine's post-load step does.

    Attributes:
        rebuild: Shell-style patterns over the engine's names of expert stacks whose derived layout is built anew.
        shards: Shards on which it is; all when `None`.
        refresh_scales: Whether scales are taken anew; else a rebuilt layout keeps the scales it had.
        halves: How gate and up are laid out; the kernel reads gate first.
    """

    rebuild: tuple[str, ...] = ("*",)
    shards: tuple[int, ...] | None = None
    refresh_scales: bool = True
    halves: Halves = Halves.GATE_FIRST


class Flush(Frozen):
    """Which memories of earlier weights the engine drops.

    Attributes:
        kda: States and convolution windows of KDA.
        latent: Latents of MLA.
        logits: The logits after a finished prefix.
    """

    kda: bool = True
    latent: bool = True
    logits: bool = True

    @property
    def is_complete(self) -> bool:
        """Tells whether nothing stays."""
        return self.kda and self.latent and self.logits


class Faults(Protocol):
    """A set of planted mismatches. Implementations may remember earlier steps."""

    @property
    def is_honest(self) -> bool:
        """Tells whether nothing is planted: a sync then leaves nothing in the engine of what was there before it."""

    def written(self) -> Note:
        """Returns what is remembered of earlier steps."""

    def recall(self, note: Note, exported: Mapping[str, Tensor]) -> None:
        """Goes on with what another set remembered that was made from the same requests.

        Args:
            note: What `written` returned.
            exported: Masters in the dtype of exports: what is remembered of them has these shapes.

        Raises:
            ValueError: If it does not fit.
        """

    def masters(self, step: int, exported: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns what is quantized, by module name.

        Args:
            step: The step.
            exported: Masters in the dtype of exports, `[E, O, I]`.
            masters: Masters as the trainer holds them.
        """

    def layer_set(self, step: int, schemes: Mapping[str, Scheme | None]) -> Mapping[str, Scheme | None]:
        """Returns the weight scheme of every expert stack in the served copy; `None` leaves it in bf16."""

    def export(self, step: int, packed: Packed, exported: Mapping[str, Tensor]) -> Packed:
        """Returns the packed weights that are sent."""

    def buckets(self, step: int, buckets: Sequence[Bucket]) -> Sequence[Bucket]:
        """Returns the buckets that arrive, in that order."""

    def post_load(self, step: int, declared: PostLoad) -> PostLoad:
        """Returns what the post-load step really does."""

    def flush(self, step: int, declared: Flush) -> Flush:
        """Returns what is really dropped."""

    def execution(self, step: int, declared: EngineExecution) -> EngineExecution:
        """Returns how the engine really computes."""

    def placement(self, step: int, declared: Placement) -> Placement:
        """Returns where the engine really looks for its experts."""


class NoFaults:
    """Plants nothing; the base of sets that plant at some points only."""

    @property
    def is_honest(self) -> bool:
        """Tells whether nothing is planted."""
        return True

    def written(self) -> Note:
        """Returns nothing."""
        return Note({}, {})

    def recall(self, note: Note, exported: Mapping[str, Tensor]) -> None:
        """Remembers nothing."""

    def masters(self, step: int, exported: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the exports."""
        return exported

    def layer_set(self, step: int, schemes: Mapping[str, Scheme | None]) -> Mapping[str, Scheme | None]:
        """Returns the schemes."""
        return schemes

    def export(self, step: int, packed: Packed, exported: Mapping[str, Tensor]) -> Packed:
        """Returns the packed weights."""
        return packed

    def buckets(self, step: int, buckets: Sequence[Bucket]) -> Sequence[Bucket]:
        """Returns the buckets."""
        return buckets

    def post_load(self, step: int, declared: PostLoad) -> PostLoad:
        """Returns the declaration."""
        return declared

    def flush(self, step: int, declared: Flush) -> Flush:
        """Returns the declaration."""
        return declared

    def execution(self, step: int, declared: EngineExecution) -> EngineExecution:
        """Returns the declaration."""
        return declared

    def placement(self, step: int, declared: Placement) -> Placement:
        """Returns the declaration."""
        return declared
