"""The sides of the simulated loop: the trainer's weights, what a sync sent, what the engine loaded and derived.

Loaded weights are read under the placement that was declared, for that is where the pieces were sent; derived ones
where the engine really looks, for that is what it multiplies with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.training.checking.sides import Shipped, Sides, TrainedWeight
from quantaudit.training.rl.derived import unpack_layout
from quantaudit.training.rl.loaded import gather
from quantaudit.training.rl.names import module_of, trainer_name
from quantaudit.training.rl.placement import Placement
from quantaudit.training.rl.state import EngineState, loaded_weights
from quantaudit.training.rl.sync import Shipment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trainer:
    """What the trainer knows of its weights; expert stacks by module name, [E, O, I].

    Attributes:
        values: What the forward multiplies with, fp32.
        schemes: Weight scheme of every stack; `None` where it is not quantized.
        exported: What is quantized.
        masters: As the optimizer holds them.
        dense: Every other parameter in the dtype that it is stored in, by parameter name.
        version: Updates that made them.
    """

    values: Mapping[str, Tensor]
    schemes: Mapping[str, Scheme | None]
    exported: Mapping[str, Tensor]
    masters: Mapping[str, Tensor]
    dense: Mapping[str, Tensor]
    version: int


def trained_weights(trainer: Trainer) -> dict[str, TrainedWeight]:
    """Returns the trainer's side."""
    stacks = {
        name: TrainedWeight(
            values=values, scheme=trainer.schemes[name], source=trainer.exported[name], master=trainer.masters[name]
        )
        for name, values in trainer.values.items()
    }
    dense = {
        name: TrainedWeight(values=value, scheme=None, source=value, master=value, is_stack=False)
        for name, value in trainer.dense.items()
    }
    return stacks | dense


def gather_sides(trainer: Trainer, shipment: Shipment, state: EngineState, declared: Placement) -> Sides:
    """Returns all sides after a sync.

    Args:
        trainer: Weights of the version that was synced.
        shipment: What was sent.
        state: What the engine holds.
        declared: Where trainer and engine have agreed that experts lie.
    """
    loaded = loaded_weights(state, declared)
    dense = {trainer_name(key.name): weight.as_weight() for key, weight in state.loaded.items() if not key.part}
    # On arrival the engine quantizes: what travels is no quantized side.
    sent: dict[str, Shipped] | None = None if shipment.arriving else {**shipment.experts, **shipment.dense}
    return Sides(
        trainer=trained_weights(trainer),
        sent=sent,
        loaded={**loaded, **dense},
        derived=unpack_experts(state, state.placement),
        trainer_version=trainer.version,
        served_version=state.version,
    )


def unpack_experts(state: EngineState, placement: Placement) -> dict[str, Shipped]:
    """Returns what the kernel reads of every expert stack, by module name, experts as the engine looks for them.

    Codes and scales are taken out of the kernel's layout and not decoded here: where they are the bytes that were
    loaded, so are their values.
    """
    unpacked = {key: unpack_layout(layout) for key, layout in state.derived.items()}
    return {
        module_of(name, part): gather([unpacked[name, shard][part] for shard in range(placement.num_shards)], placement)
        for name in dict.fromkeys(name for name, _ in unpacked)
        for part in unpacked[name, 0]
    }
