"""What an engine holds, as it lets others look at it: loaded weights and derived layouts, shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from quantaudit.engines.stored import StoredTensor
from quantaudit.training.rl.derived import DerivedLayout
from quantaudit.training.rl.loaded import LoadedWeight, gather
from quantaudit.training.rl.names import module_of
from quantaudit.training.rl.placement import Placement


class Key(NamedTuple):
    """A loaded weight: the engine's name, the half of a fused stack (empty for dense parameters), and the shard."""

    name: str
    part: str
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineState:
    """A look into an engine.

    Attributes:
        version: The version that it says it serves.
        loaded: Everything that arrived, dense parameters included.
        derived: Layouts by (name, shard).
        placement: Where it looks for its experts.
    """

    version: int
    loaded: Mapping[Key, LoadedWeight]
    derived: Mapping[tuple[str, int], DerivedLayout]
    placement: Placement

    @property
    def oldest_loaded(self) -> int:
        """Returns the oldest version among the fields of loaded weights."""
        return min(weight.oldest for weight in self.loaded.values())

    @property
    def oldest_derived(self) -> int:
        """Returns the oldest version that a derived layout was made from."""
        return min((layout.version for layout in self.derived.values()), default=self.oldest_loaded)


def loaded_weights(state: EngineState, placement: Placement) -> dict[str, StoredTensor | Tensor]:
    """Returns the loaded expert stacks by module name, experts in logical order.

    Args:
        state: What the engine holds.
        placement: By which the weights were dealt out, which is not for the engine to say.
    """
    parts = dict.fromkeys((key.name, key.part) for key in state.loaded if key.part)
    return {
        module_of(name, part): gather(
            [state.loaded[Key(name, part, shard)].as_weight() for shard in range(placement.num_shards)],
            placement,
        )
        for name, part in parts
    }
