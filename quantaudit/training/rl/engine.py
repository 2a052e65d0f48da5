"""The rollout engine: loaded parameters, the layouts derived from them, a memory of prefixes, and a way to compute.

    pause   load bucket ... load bucket   post-load   flush   resume   generate ... generate   sleep   wake

Loading changes what was loaded and nothing else; only the post-load step makes it count, for the layouts it builds.
Weights are loaded while the engine is paused and tokens written while it is not. Asleep, it keeps weights and memories
on the host, as Kimi K3 offloads KDA states together with the latents of MLA. Tokens are written from the derived
layouts alone.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from quantaudit.model.config import ModelConfig
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.decoding import Continuation, Request, Want, decode
from quantaudit.training.rl.derived import DerivedLayout, decode_layout, derive_layout
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, PostLoad
from quantaudit.training.rl.kept_engine import read_engine, write_engine
from quantaudit.training.rl.loaded import LoadedWeight, gather, take_in
from quantaudit.training.rl.memory import PrefixMemory
from quantaudit.training.rl.names import module_of, other_name, trainer_name
from quantaudit.training.rl.placement import Placement
from quantaudit.training.rl.randomise import differing, name_weights, randomise_state
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.rl.serving import Served, ServedModels
from quantaudit.training.rl.state import EngineState, Key
from quantaudit.training.rl.wire import Message


class EngineRefusedError(RuntimeError):
    """Says that an engine was asked for something that it cannot do in the state it is in."""


Answer: TypeAlias = Callable[[], list[Continuation]]


class Engine(Protocol):
    """What the loop drives; the engine itself, or a client of one in another process."""

    @property
    def version(self) -> int:
        """Returns the version that the engine says it serves; -1 before the first."""

    @property
    def is_asleep(self) -> bool:
        """Tells whether it has given its memory back."""

    def pause(self) -> None:
        """Stops writing tokens, so that weights can be loaded."""

    def resume(self) -> None:
        """Writes tokens again."""

    def load(self, bucket: Bucket) -> None:
        """Takes in the pieces of a bucket."""

    def post_load(self, version: int, post: PostLoad, placement: Placement, execution: EngineExecution) -> None:
        """Makes the loaded weights count."""

    def flush_cache(self, flush: Flush) -> None:
        """Drops what was remembered of prefixes."""

    def sleep(self) -> None:
        """Gives its memory back; weights and what was remembered of prefixes stay on the host."""

    def wake(self) -> None:
        """Takes back what lies on the host."""

    def generate(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> list[Continuation]:
        """Continues requests."""

    def begin(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> Answer:
        """Asks for continuations; the answer is waited for when it is called."""

    def export_state(self) -> EngineState:
        """Returns what was loaded and what was derived."""

    def snapshot(self) -> None:
        """Remembers the weights as they are, for `compare`."""

    def randomise(self, seed: int) -> int:
        """Overwrites every loaded and derived weight with noise; returns how many."""

    def compare(self) -> tuple[str, ...]:
        """Returns the names of weights that are not as they were at the snapshot, and goes back to it."""

    def close(self) -> None:
        """Ends the engine."""


@dataclass(slots=True)
class _Weights:
    """What lies in the engine's memory."""

    loaded: dict[Key, LoadedWeight]
    derived: dict[tuple[str, int], DerivedLayout]


class RolloutEngine:
    """The engine, in the process that it runs in."""

    def __init__(self, config: ModelConfig) -> None:
        self._models = ServedModels(config)
        self._weights = _Weights({}, {})
        self._host: _Weights | None = None
        self._snapshot: _Weights | None = None
        self._memory = PrefixMemory()
        self._placement: Placement | None = None
        self._execution = EngineExecution()
        self._served: Served | None = None
        self._is_paused = False
        self._version = -1

    @property
    def version(self) -> int:
        """Returns the version that the engine says it serves; -1 before the first."""
        return self._version

    @property
    def is_asleep(self) -> bool:
        """Tells whether it has given its memory back."""
        return self._host is not None

    def pause(self) -> None:
        """Stops writing tokens, so that weights can be loaded."""
        self._is_paused = True

    def resume(self) -> None:
        """Writes tokens again."""
        self._is_paused = False

    def load(self, bucket: Bucket) -> None:
        """Takes in the pieces of a bucket.

        Raises:
            EngineRefusedError: If the engine is not paused, or asleep.
        """
        self._refuse_asleep("loading weights")
        if not self._is_paused:
            raise EngineRefusedError("weights were sent while tokens may be written; pause the engine first")
        for piece in bucket.pieces:
            key = Key(piece.name, piece.part, piece.shard)
            self._weights.loaded[key] = take_in(self._weights.loaded.get(key), piece, bucket.version)
            if piece.part:
                other = other_name(piece.name, piece.part)
                self._weights.loaded.pop(Key(other, piece.part, piece.shard), None)

    def post_load(self, version: int, post: PostLoad, placement: Placement, execution: EngineExecution) -> None:
        """Builds the derived layouts that the step covers, and goes on under this placement and execution."""
        self._refuse_asleep("the post-load step")
        for (name, shard), weights in self._stacks().items():
            held = self._weights.derived.get((name, shard))
            if held is not None and not _is_covered(post, name, shard):
                continue
            self._weights.derived[name, shard] = derive_layout(name, shard, weights, post, held)
        names = {(name, shard) for name, shard in self._stacks()}
        self._weights.derived = {key: layout for key, layout in self._weights.derived.items() if key in names}
        self._placement, self._execution, self._version = placement, execution, version
        self._served = None

    def flush_cache(self, flush: Flush) -> None:
        """Drops what was remembered of prefixes."""
        self._memory.flush(flush)

    def sleep(self) -> None:
        """Gives its memory back; weights and what was remembered of prefixes stay on the host."""
        self._refuse_asleep("sleeping")
        self._host, self._weights = self._weights, _Weights({}, {})
        self._served = None

    def wake(self) -> None:
        """Takes back what lies on the host."""
        if self._host is None:
            raise EngineRefusedError("the engine is awake; it cannot wake again")
        self._weights, self._host = self._host, None

    def generate(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> list[Continuation]:
        """Continues requests, by the cache path.

        Raises:
            EngineRefusedError: If the engine is paused, asleep or without weights.
        """
        self._refuse_asleep("writing tokens")
        if self._is_paused:
            raise EngineRefusedError("tokens were asked for while weights may be loaded; resume the engine first")
        return decode(self._model(), requests, sampling, want, self._memory) if requests else []

    def begin(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> Answer:
        """Asks for continuations; in the same process they are written at once.

        Raises:
            EngineRefusedError: As `generate`.
        """
        continuations = self.generate(requests, sampling, want)
        return lambda: continuations

    def export_state(self) -> EngineState:
        """Returns what was loaded and what was derived."""
        self._refuse_asleep("exporting its state")
        if self._placement is None:
            raise EngineRefusedError("no weights were loaded yet")
        return EngineState(
            version=self._version,
            loaded=dict(self._weights.loaded),
            derived=dict(self._weights.derived),
            placement=self._placement,
        )

    def snapshot(self) -> None:
        """Remembers the weights as they are; tensors are never changed in place, so nothing is copied."""
        self._snapshot = _Weights(dict(self._weights.loaded), dict(self._weights.derived))

    def randomise(self, seed: int) -> int:
        """Overwrites every loaded and derived weight with noise of the same shapes; returns how many tensors."""
        self._refuse_asleep("randomising")
        state = randomise_state(self._weights.loaded, self._weights.derived, seed)
        self._weights = _Weights(state.loaded, state.derived)
        self._served = None
        return state.num_tensors

    def compare(self) -> tuple[str, ...]:
        """Returns the names of weights that are not, bit for bit, as they were at the snapshot, and goes back to it."""
        self._refuse_asleep("comparing")
        if self._snapshot is None:
            raise EngineRefusedError("there is no snapshot to compare with")
        held, now = self._snapshot, self._weights
        self._weights, self._snapshot, self._served = held, None, None
        return differing(name_weights(held.loaded, held.derived), name_weights(now.loaded, now.derived))

    def checkpoint(self, *, with_memory: bool) -> Message:
        """Returns all that it holds, awake or asleep; of prefixes only if they are wanted.

        Raises:
            EngineRefusedError: If it holds no weights.
        """
        if self._placement is None:
            raise EngineRefusedError("no weights were loaded yet")
        weights = self._weights if self._host is None else self._host
        state = EngineState(
            version=self._version, loaded=weights.loaded, derived=weights.derived, placement=self._placement
        )
        return write_engine(state, self._memory if with_memory else PrefixMemory())

    def restore(self, held: Message) -> None:
        """Holds what another engine did, and is awake; its execution comes with the next post-load step."""
        state, self._memory = read_engine(held)
        self._weights, self._host = _Weights(dict(state.loaded), dict(state.derived)), None
        self._placement, self._version, self._served = state.placement, state.version, None

    def close(self) -> None:
        """Frees everything."""
        self._weights, self._host, self._snapshot, self._served = _Weights({}, {}), None, None, None

    def _refuse_asleep(self, what: str) -> None:
        if self._host is not None:
            raise EngineRefusedError(f"the engine is asleep; {what} needs it awake")

    def _stacks(self) -> dict[tuple[str, int], dict[str, LoadedWeight]]:
        """Returns the loaded expert stacks by (name, shard), their parts gate first."""
        stacks: dict[tuple[str, int], dict[str, LoadedWeight]] = {}
        for key in sorted(key for key in self._weights.loaded if key.part):
            stacks.setdefault((key.name, key.shard), {})[key.part] = self._weights.loaded[key]
        return stacks

    def _model(self) -> Served:
        """Returns the model over the derived layouts; decoded once, for layouts are replaced and never changed."""
        if self._served is None:
            if self._placement is None:
                raise EngineRefusedError("no weights were loaded yet")
            dense = {trainer_name(k.name): _values(w) for k, w in self._weights.loaded.items() if not k.part}
            experts = decode_experts(self._weights.derived, self._placement)
            self._served = self._models.build(experts, dense, self._execution)
        return self._served


def decode_experts(derived: Mapping[tuple[str, int], DerivedLayout], placement: Placement) -> dict[str, Tensor]:
    """Returns what the kernel multiplies with, `[E, O, I]` fp32 by module name; experts as the engine finds them."""
    decoded = {key: decode_layout(layout) for key, layout in derived.items()}
    experts: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for name, _ in derived):
        for part in decoded[name, 0]:
            whole = gather([decoded[name, shard][part] for shard in range(placement.num_shards)], placement)
            assert isinstance(whole, Tensor)
            experts[module_of(name, part)] = whole
    return experts


def _is_covered(post: PostLoad, name: str, shard: int) -> bool:
    on_shard = post.shards is None or shard in post.shards
    return on_shard and any(fnmatch.fnmatchcase(name, pattern) for pattern in post.rebuild)


def _values(weight: LoadedWeight) -> Tensor:
    values = weight.as_weight()
    assert isinstance(values, Tensor)
    return values
