"""What the schemes that were found between a plain and a packed tensor say of the two checkpoints.

    the plain side is a master             the scheme is the rule that quantized it
    the plain side is quantized elsewhere  a layer set: the tensor was left out here, or taken in there

A checkpoint is quantized elsewhere where a tensor is packed on both sides with equal values, or plain on one and packed
on the other with equal values, so that the plain numbers are fake-quantized.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from quantaudit.core.comparison import EQUAL, Diagnosis, Encoding, TensorClass
from quantaudit.identity.compare_matrix import Explanation
from quantaudit.identity.layouts.logical import LogicalTensor, Side
from quantaudit.identity.mismatches import included_layer, skipped_layer

RULE = "rule"
_NOT_PACKED = frozenset({Encoding.PLAIN, Encoding.INTEGERS, Encoding.UNKNOWN})

# By logical name and scheme: the least share of any matrix that was found to be made by it.
Explained: TypeAlias = Mapping[tuple[str, str], Explanation]


def name_rules(a: Side, b: Side, classes: Mapping[str, TensorClass], explained: Explained) -> Iterable[Diagnosis]:
    """Yields one diagnosis a tensor and scheme.

    Args:
        a: First side.
        b: Second side.
        classes: What every tensor comes to, by logical name.
        explained: Schemes that the matrices of tensors were found to be made by.
    """
    is_layer_set = bool(explained) and any(_is_quantized_alike(a, b, name) for name in _equal(classes))
    for (name, _), explanation in explained.items():
        is_first_plain = is_plain(a.tensors[name])
        made = f"quantized by {explanation.scheme}"
        about = included_layer.ABOUT if is_first_plain else skipped_layer.ABOUT
        yield Diagnosis(
            kind=about.kind.value if is_layer_set else RULE,
            mismatch=about.name if is_layer_set else explanation.scheme,
            field=about.field if is_layer_set else "",
            train="unquantized" if is_first_plain else made,
            serve=made if is_first_plain else "unquantized",
            explains=explanation.explains,
            tensors=(name,),
        )


def is_plain(tensor: LogicalTensor) -> bool:
    """Says whether all matrices of a tensor are plain numbers."""
    return all(source.encoding is Encoding.PLAIN for source in tensor.matrices.values())


def _equal(classes: Mapping[str, TensorClass]) -> Iterator[str]:
    yield from (name for name, found in classes.items() if found in EQUAL)


def _is_quantized_alike(a: Side, b: Side, name: str) -> bool:
    """Says whether two equal sides are packed, or one is, and the other so fake-quantized; zeros tell nothing."""
    sides = a.tensors[name], b.tensors[name]
    packed = [any(source.encoding not in _NOT_PACKED for source in one.matrices.values()) for one in sides]
    return all(packed) or (any(packed) and _has_numbers(sides[packed.index(False)]))


def _has_numbers(tensor: LogicalTensor) -> bool:
    return any(bool(source.read().values(slice(0, source.shape[0])).any()) for source in tensor.matrices.values())
