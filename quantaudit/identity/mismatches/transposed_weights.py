"""A matrix is taken for its transpose: the shape is exchanged, or kept while the memory is that of the transpose."""

from __future__ import annotations

from torch import Tensor

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Places, Projection, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_values

ABOUT = About(
    name="transposed-weights",
    kind=Kind.LAYOUT,
    field="layout.axes",
    sentence="The weights are those of the transposed matrix.",
)
_TRAIN = "rows are outputs, columns are inputs"


def apply(layer: Layer) -> Layer | None:
    """Keeps every shape, with the memory of the transposed matrix, as a view after a transposition does."""
    return map_weights(layer, lambda weight: _changed(weight, viewed_transposed(weight.values)))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the transposed matrix, in its own shape or in the trainer's."""
    return best(ABOUT, train, serve, variants())


def variants() -> list[Variant]:
    """Returns the transposed matrix in its own shape, and its memory in that of the trainer's."""
    viewed = "the memory of the transpose under the old shape"
    return [
        Variant(_TRAIN, "rows are inputs, columns are outputs", _exchanged, locate=_exchange),
        Variant(_TRAIN, viewed, apply, locate=_locate_viewed),
    ]


def viewed_transposed(x: Tensor) -> Tensor:
    """Returns [..., R, C] with the memory of its transpose, in the old shape."""
    return x.transpose(-1, -2).contiguous().view(x.shape)


def _exchanged(layer: Layer) -> Layer | None:
    return map_weights(layer, lambda weight: _changed(weight, weight.values.transpose(-1, -2)))


def _changed(weight: Weight, values: Tensor) -> Weight | None:
    return with_values(weight, values) if min(values.shape[-2:]) > 1 else None


def _exchange(places: Places, shape: tuple[int, int]) -> Places | None:
    if places.projection is Projection.GATE_UP or shape[0] != shape[1]:
        return None
    return places._replace(rows_K=places.cols_K, cols_K=places.rows_K)


def _locate_viewed(places: Places, shape: tuple[int, int]) -> Places | None:
    if places.projection is Projection.GATE_UP or min(shape) < 2:
        return None
    rows, cols = shape
    flat_K = places.rows_K * cols + places.cols_K
    return places._replace(rows_K=flat_K % rows, cols_K=flat_K // rows)
