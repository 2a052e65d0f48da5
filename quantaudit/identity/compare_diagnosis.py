"""What explains the differences of two checkpoints: rules that were found, structural mismatches, and code statistics.

    a master against codes     the scheme that makes them, else the mismatch that comes on top of the likeliest one
    two quantized sides        the mismatch that turns one into the other; else, of two packed sides, the scale rules
                               that their codes point to, where these are not the same

A layer is read at a time, and of those with one kind of difference only the first few: a fault rarely hits one alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from quantaudit.core.comparison import Diagnosis, Encoding, TensorClass, TensorComparison
from quantaudit.core.identification import CodeEvidence, Standing
from quantaudit.core.scheme import Scheme
from quantaudit.identity.compare_matrix import Explanation
from quantaudit.identity.histogram import judge_codes
from quantaudit.identity.identify_layer import MOST_VALUES, Sides, diagnose_layer
from quantaudit.identity.identify_tensor import Described, read_alone
from quantaudit.identity.layouts.logical import LogicalTensor, MatrixSource, Side
from quantaudit.identity.mismatches.protocol import CONVINCING, Finding, Kind, Layer, Projection
from quantaudit.identity.mismatches.registry import search_mismatches
from quantaudit.identity.search_sample import Served, read_served
from quantaudit.identity.stored_weights import read_weight

RULE = "rule"
_EXPERTS = re.compile(r"^(.*\.experts)\.(gate|up|down)$")
_MOST_MATRICES = 8  # whose codes are counted
_MOST_LAYERS = 4  # that are searched for one kind of difference
_DIFFERENT = frozenset(
    {
        TensorClass.DIFFERENT_VALUES,
        TensorClass.DIFFERENT_CODES,
        TensorClass.DIFFERENT_SCALES,
        TensorClass.DIFFERENT_SHAPE,
        TensorClass.LAYER_SET,
    }
)

_ON_GRID = frozenset({TensorClass.DIFFERENT_CODES, TensorClass.DIFFERENT_SCALES})  # plain numbers are fake-quantized

# By logical name and scheme: the least share of any matrix that was found to be made by it.
Explained: TypeAlias = Mapping[tuple[str, str], Explanation]


class _Group(NamedTuple):
    """Tensors that are looked at together: the unequal experts of a layer with their equal ones, or one tensor."""

    names: Mapping[Projection, str]
    unequal: tuple[str, ...]


def diagnose_comparison(
    a: Side, b: Side, tensors: Iterable[TensorComparison], explained: Explained
) -> tuple[Diagnosis, ...]:
    """Explains what a comparison found.

    Args:
        a: First side.
        b: Second side.
        tensors: What the comparison found.
        explained: Schemes that the matrices of tensors were found to be made by.
    """
    found = list(_rules(a, explained))
    searched: dict[tuple[str, str, TensorClass], int] = {}
    classes = {tensor.name: tensor.tensor_class for tensor in tensors}
    schemes = list({e.found.name: e.found for e in explained.values() if e.found is not None}.values())
    for group in _groups(a, b, classes):
        kind = (_form(a, group), _form(b, group), classes[group.unequal[0]])
        searched[kind] = searched.get(kind, 0) + 1
        if searched[kind] <= _MOST_LAYERS:
            found += _diagnose_group(a, b, group, kind[2], schemes)
    return _merged(found)


def _rules(a: Side, explained: Explained) -> Iterable[Diagnosis]:
    """Yields one diagnosis a tensor and scheme."""
    for (name, _), explanation in explained.items():
        is_first_plain = _is_plain(a.tensors[name])
        made = f"quantized by {explanation.scheme}"
        yield Diagnosis(
            kind=RULE,
            mismatch=explanation.scheme,
            field="",
            train="unquantized" if is_first_plain else made,
            serve=made if is_first_plain else "unquantized",
            explains=explanation.explains,
            tensors=(name,),
        )


def _groups(a: Side, b: Side, classes: Mapping[str, TensorClass]) -> list[_Group]:
    layers: dict[str, dict[Projection, str]] = {}
    for name, found in classes.items():
        if name not in a.tensors or name not in b.tensors or found is TensorClass.NON_FINITE:
            continue
        if not _can_pair(a.tensors[name], b.tensors[name]):
            continue
        parsed = _EXPERTS.fullmatch(name)
        if parsed is not None:
            layers.setdefault(parsed[1], {})[Projection(parsed[2])] = name
        else:
            layers[name] = {Projection.WHOLE: name}
    groups = [_Group(names, tuple(n for n in names.values() if classes[n] in _DIFFERENT)) for names in layers.values()]
    return [group for group in groups if group.unequal]


def _can_pair(a: LogicalTensor, b: LogicalTensor) -> bool:
    is_readable = all(
        source.encoding not in (Encoding.INTEGERS, Encoding.UNKNOWN)
        for tensor in (a, b)
        for source in tensor.matrices.values()
    )
    shapes = [{tuple(sorted(source.shape)) for source in tensor.matrices.values()} for tensor in (a, b)]
    is_matrix = all(len(shape) == 2 for shape in shapes[0] | shapes[1])
    return is_readable and is_matrix and a.matrices.keys() == b.matrices.keys() and shapes[0] == shapes[1]


def _form(side: Side, group: _Group) -> str:
    return side.tensors[group.unequal[0]].storage


def _diagnose_group(
    a: Side, b: Side, group: _Group, found_class: TensorClass, schemes: list[Scheme]
) -> list[Diagnosis]:
    left = {projection: a.tensors[name] for projection, name in group.names.items()}
    right = {projection: b.tensors[name] for projection, name in group.names.items()}
    is_plain = [all(_is_plain(tensor) for tensor in side.values()) for side in (left, right)]
    found: list[Diagnosis | None] = []
    if is_plain[0] != is_plain[1] and found_class not in _ON_GRID:
        found.append(_from_master(left, right, schemes, is_first_master=is_plain[0]))
    if not any(one is not None and one.explains == 1 for one in found):
        found.append(_between(left, right, is_swapped=is_plain[0] and not is_plain[1]))
    if not any(found) and not any(is_plain):
        found.append(_by_codes(a.tensors[group.unequal[0]], b.tensors[group.unequal[0]]))
    best = max((one for one in found if one is not None), key=lambda one: one.explains, default=None)
    return [] if best is None else [best.model_copy(update={"tensors": group.unequal})]


def _from_master(
    left: Mapping[Projection, LogicalTensor],
    right: Mapping[Projection, LogicalTensor],
    schemes: list[Scheme],
    *,
    is_first_master: bool,
) -> Diagnosis | None:
    """Returns the mismatch between what a scheme makes of the plain side and the packed one."""
    master, served = (left, right) if is_first_master else (right, left)
    sides = {name: Sides(served=served[name], master=master[name]) for name in served}
    diagnosed, _ = diagnose_layer(sides, schemes)
    if diagnosed is None or diagnosed.found.explains < CONVINCING:
        return None
    named = diagnosed.found
    scheme = diagnosed.scheme.name
    return _diagnosis(named.kind, named.mismatch, named.field, f"{named.train} ({scheme})", named.serve, named.explains)


def _between(
    left: Mapping[Projection, LogicalTensor], right: Mapping[Projection, LogicalTensor], *, is_swapped: bool
) -> Diagnosis | None:
    """Returns the mismatch that turns one quantized side into the other; codes are known of a packed one only."""
    known, other = (right, left) if is_swapped else (left, right)
    most = max(1, MOST_VALUES // max(1, len(known) * _largest(known)))
    findings = search_mismatches(_as_layer(known, most), _as_layer(other, most))
    if not findings or not findings[0].is_convincing:
        return None
    first: Finding = findings[0]
    train, serve = (first.serve, first.train) if is_swapped else (first.train, first.serve)
    return _diagnosis(first.about.kind.value, first.about.name, first.about.field, train, serve, first.explains)


def _by_codes(a: LogicalTensor, b: LogicalTensor) -> Diagnosis | None:
    """Returns the scale rules that the codes of two packed sides point to, if they are not the same."""
    judged = [judge_codes(evidence) for tensor in (a, b) if (evidence := _read_codes(tensor)) is not None]
    if len(judged) < len((a, b)) or not all(rule for _, rule, _ in judged) or judged[0][1] == judged[1][1]:
        return None
    train, serve = (
        f"{rule}, {'proved' if standing is Standing.PROVED else 'likely'} by its codes" for standing, rule, _ in judged
    )
    is_power = bool(_encodings(a) & {Encoding.MXFP4, Encoding.MXFP8})
    kind, field = (Kind.SCALE_RULE, "scale.rounding") if is_power else (Kind.RANGE, "scale.divisor")
    return _diagnosis(kind.value, "scale-rule", field, train, serve, 0.0)


def _read_codes(tensor: LogicalTensor) -> CodeEvidence | None:
    """Returns what the codes of a few matrices show; `None` if they are plain numbers."""
    numbers = sorted(tensor.matrices)[:_MOST_MATRICES]
    if any(tensor.matrices[number].encoding is Encoding.PLAIN for number in numbers):
        return None
    about = Described(name=tensor.name, shape=tensor.matrices[numbers[0]].shape, storage=tensor.storage)
    return read_alone(about, {n: partial(_read_served, tensor.matrices[n]) for n in numbers}).evidence


def _encodings(tensor: LogicalTensor) -> set[Encoding]:
    return {source.encoding for source in tensor.matrices.values()}


def _read_served(source: MatrixSource) -> Served:
    return read_served(source.read())


def _diagnosis(kind: str, mismatch: str, field: str, train: str, serve: str, explains: float) -> Diagnosis:
    return Diagnosis(kind=kind, mismatch=mismatch, field=field, train=train, serve=serve, explains=explains, tensors=())


def _as_layer(tensors: Mapping[Projection, LogicalTensor], most: int) -> Layer:
    return {projection: read_weight(tensor, sorted(tensor.matrices)[:most]) for projection, tensor in tensors.items()}


def _largest(tensors: Mapping[Projection, LogicalTensor]) -> int:
    return max(source.shape[0] * source.shape[1] for tensor in tensors.values() for source in tensor.matrices.values())


def _is_plain(tensor: LogicalTensor) -> bool:
    return all(source.encoding is Encoding.PLAIN for source in tensor.matrices.values())


def _merged(found: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """Joins the tensors of equal diagnoses under the least share; the best comes first."""
    merged: dict[tuple[str, ...], Diagnosis] = {}
    for one in found:
        key = (one.kind, one.mismatch, one.field, one.train, one.serve)
        if key in merged:
            tensors = tuple(sorted({*merged[key].tensors, *one.tensors}))
            least = min(one.explains, merged[key].explains)
            one = one.model_copy(update={"tensors": tensors, "explains": least})
        merged[key] = one
    return tuple(sorted(merged.values(), key=lambda one: (-one.explains, one.kind, one.mismatch)))
