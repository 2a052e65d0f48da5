"""What a diagnosis has to go by: one layer on both sides of the place where its values change, and what came before.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from quantaudit.core.step_log import Side
from quantaudit.engines.stored import StoredTensor, restore
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.numerics import quantize
from quantaudit.training.checking.sides import Past, Shipped, Sides, TrainedWeight, decode_shipped

_PROJECTIONS = {"w1": Projection.GATE, "w3": Projection.UP, "w2": Projection.DOWN}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """One layer where two neighbouring sides part.

    Attributes:
        leg: The two sides.
        names: Module names of the layer's projections.
        train: The layer on the first of them.
        serve: The layer on the second.
        trained: The layer in the trainer.
        past: Earlier steps, newest first.
        first: The first step of the run.
        is_everything: Whether every weight that changed in the last update parts here.
    """

    leg: tuple[Side, Side]
    names: Mapping[Projection, str]
    train: Layer
    serve: Layer
    trained: Mapping[Projection, TrainedWeight]
    past: tuple[Past, ...]
    first: Past | None
    is_everything: bool

    def earlier_shipped(self, age: int) -> dict[Projection, Shipped]:
        """Returns the layer as it was shipped `age` updates ago."""
        shipped = self.past[age - 1].shipped
        return {projection: shipped[name] for projection, name in self.names.items() if name in shipped}


def group_layers(names: Mapping[str, object] | tuple[str, ...]) -> dict[str, dict[Projection, str]]:
    """Returns the projections of every layer by the layer's name; a weight that is no expert stack stands alone."""
    layers: dict[str, dict[Projection, str]] = {}
    for name in names:
        layer, _, role = name.rpartition(".")
        if layer.endswith("experts") and role in _PROJECTIONS:
            layers.setdefault(layer, {})[_PROJECTIONS[role]] = name
        else:
            layers[name] = {Projection.WHOLE: name}
    return layers


def gather_evidence(
    sides: Sides, leg: tuple[Side, Side], names: Mapping[Projection, str], history: History, *, is_everything: bool
) -> Evidence:
    """Returns what is known of one layer at one leg."""
    trained = {projection: sides.trainer[name] for projection, name in names.items()}
    past = history.past
    earlier = {p: tuple(old.sources[name] for old in past if name in old.sources) for p, name in names.items()}
    served = sides.served()
    train = {p: trained_weight(weight, earlier[p]) for p, weight in trained.items()}
    if leg[0] is not Side.TRAINER:
        before = served[leg[0]]
        train = {p: _passed_on(train[p], before[name]) for p, name in names.items() if name in before}
    after = served[leg[1]]
    serve = {p: shipped_weight(after[name]) for p, name in names.items() if name in after}
    return Evidence(
        leg=leg,
        names=names,
        train=train,
        serve=serve,
        trained=trained,
        past=past,
        first=history.first,
        is_everything=is_everything,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Earlier steps, newest first, and the first of the run."""

    past: tuple[Past, ...] = ()
    first: Past | None = None


def trained_weight(trained: TrainedWeight, earlier: tuple[Tensor, ...] = ()) -> Weight:
    """Returns a weight of the trainer with its codes, its source and the sources before."""
    codes = None if trained.scheme is None else quantize(trained.source, trained.scheme)
    return Weight(
        values=trained.values.float(), quantized=codes, scheme=trained.scheme, master=trained.source, earlier=earlier
    )


def shipped_weight(shipped: Shipped) -> Weight:
    """Returns a weight as somebody holds it who knows no master."""
    stored = isinstance(shipped, StoredTensor)
    return Weight(
        values=decode_shipped(shipped),
        quantized=restore(shipped) if isinstance(shipped, StoredTensor) else None,
        scheme=shipped.scheme if stored and isinstance(shipped, StoredTensor) else None,
    )


def _passed_on(trained: Weight, shipped: Shipped) -> Weight:
    """Returns what a later side was given, with the masters that it was made from."""
    held = shipped_weight(shipped)
    return Weight(
        values=held.values,
        quantized=held.quantized,
        scheme=held.scheme or trained.scheme,
        master=trained.master,
        earlier=trained.earlier,
    )
