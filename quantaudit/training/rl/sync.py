"""How weights get from the trainer into the engine: cut to shards, renamed, filled into buckets, loaded, made to count.

    pause -> load every bucket -> post-load -> flush -> resume

Weights are quantized by the trainer (codes and scales travel) or on arrival (bf16 travels, and the engine quantizes);
both must end in the same bytes.

Legend: E experts, S experts of a shard, O out, I in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.engines.stored import StoredTensor
from quantaudit.training.rl.bucket import EVERY_SHARD, Bucket, Field, Piece, fill_buckets
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Faults, Flush, Packed, PostLoad
from quantaudit.training.rl.loaded import fields_of
from quantaudit.training.rl.names import GATE, UP, engine_name, role_of, stack_name
from quantaudit.training.rl.placement import Placement


class QuantizeAt(StrEnum):
    """Where weights become codes."""

    TRAINER = "trainer"
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shipment:
    """What one sync sends.

    Attributes:
        version: Optimizer steps that made the weights.
        experts: Packed weights, or bf16 where they are not quantized or are quantized on arrival, by module name.
        arriving: Schemes in which bf16 values are quantized on arrival, by module name.
        dense: Every other parameter, by the trainer's name.
    """

    version: int
    experts: Packed
    arriving: Mapping[str, Scheme]
    dense: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What trainer and engine have agreed upon."""

    placement: Placement
    execution: EngineExecution


def cut_shipment(shipment: Shipment, placement: Placement) -> list[Piece]:
    """Returns the pieces of a shipment: every field of every expert stack on every shard, then the dense parameters."""
    pieces: list[Piece] = []
    for module, weight in shipment.experts.items():
        name = stack_name(module, is_fused=_fuses(module, shipment))
        scheme = weight.scheme if isinstance(weight, StoredTensor) else shipment.arriving.get(module)
        code_dtype = weight.code_dtype if isinstance(weight, StoredTensor) else torch.uint8
        for shard in range(placement.num_shards):
            expert_S = torch.tensor(placement.experts_of(shard))
            for field, tensor in fields_of(weight).items():
                pieces.append(
                    Piece(
                        name=name,
                        part=role_of(module),
                        field=field,
                        shard=shard,
                        tensor=tensor.index_select(0, expert_S),
                        scheme=scheme,
                        shape=(len(expert_S), *weight.shape[1:]),
                        code_dtype=code_dtype,
                    )
                )
    return pieces + [_dense_piece(parameter, tensor) for parameter, tensor in shipment.dense.items()]


def _dense_piece(parameter: str, tensor: Tensor) -> Piece:
    return Piece(
        name=engine_name(parameter),
        part="",
        field=Field.VALUES,
        shard=EVERY_SHARD,
        tensor=tensor,
        shape=tuple(tensor.shape),
    )


def _fuses(module: str, shipment: Shipment) -> bool:
    """Tells whether gate and up of this layer lie in one stack: where both are held alike."""
    layer, role = module.rsplit(".", 1)
    if role not in (GATE, UP):
        return False
    gate, up = (_kind(f"{layer}.{half}", shipment) for half in (GATE, UP))
    return gate == up


def _kind(module: str, shipment: Shipment) -> tuple[object, ...]:
    weight = shipment.experts[module]
    if isinstance(weight, StoredTensor):
        return (weight.scheme, weight.scales.shape, weight.code_dtype)
    return (shipment.arriving.get(module), weight.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """What really reaches the engine in one sync, and what it really does with it.

    A delivery can be made again, which the check of the transport does.
    """

    version: int
    buckets: Sequence[Bucket]
    post: PostLoad
    flush: Flush
    placement: Placement
    execution: EngineExecution


def plan_delivery(shipment: Shipment, declared: Declared, faults: Faults, step: int, *, bucket_bytes: int) -> Delivery:
    """Fills the buckets, and lets what was planted change them and what the engine does."""
    pieces = cut_shipment(shipment, declared.placement)
    buckets = fill_buckets(pieces, shipment.version, bucket_bytes)
    return Delivery(
        version=shipment.version,
        buckets=faults.buckets(step, buckets),
        post=faults.post_load(step, PostLoad()),
        flush=faults.flush(step, Flush()),
        placement=faults.placement(step, declared.placement),
        execution=faults.execution(step, declared.execution),
    )


def deliver(engine: Engine, delivery: Delivery) -> None:
    """Brings the engine to a version.

    Raises:
        EngineDiedError: If the engine ends or hangs.
        EngineRefusedError: If it refuses.
    """
    engine.pause()
    for bucket in delivery.buckets:
        engine.load(bucket)
    engine.post_load(delivery.version, delivery.post, delivery.placement, delivery.execution)
    engine.flush_cache(delivery.flush)
    engine.resume()
