"""What explains the differences of two checkpoints: rules that were found, structural mismatches, and code statistics.

    a master against codes     the scheme that makes them, else the mismatch that comes on top of the likeliest one
    two quantized sides        the mismatch that turns one into the other; else, of two packed sides, the scale rules
                               that their codes point to, where these are not the same

A fault rarely hits one layer alone: what explained one is asked first of others with the same kind of difference, and
after a few layers that nothing explains, nothing else is. It may hit single experts: beside what explains a layer, what
explains most of a single expert is named with that expert, and its share of the layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from quantaudit.core.comparison import Diagnosis, Encoding, TensorClass, TensorComparison
from quantaudit.core.scheme import Scheme
from quantaudit.identity.compare_alone import choose_unexplained, name_experts, search_alone, take_experts
from quantaudit.identity.compare_between import search_layer
from quantaudit.identity.compare_codes import rules_by_codes
from quantaudit.identity.compare_leads import Between
from quantaudit.identity.compare_matrix import Explanation
from quantaudit.identity.compare_record import Records
from quantaudit.identity.identify_layer import Sides, diagnose_layer
from quantaudit.identity.layouts.logical import LogicalTensor, Side
from quantaudit.identity.mismatches import permuted_experts
from quantaudit.identity.mismatches.protocol import CONVINCING, Finding, Kind, Projection

RULE = "rule"
_EXPERTS = re.compile(r"^(.*\.experts)\.(gate|up|down)$")
_MOST_LAYERS = 4  # of one kind of difference that nothing explains, or that are searched from masters
_AS_BEFORE = 0.05  # less of the share that a mismatch explained in other layers
_DIFFERENT = frozenset(
    {
        TensorClass.DIFFERENT_VALUES,
        TensorClass.DIFFERENT_CODES,
        TensorClass.DIFFERENT_SCALES,
        TensorClass.DIFFERENT_SHAPE,
        TensorClass.LAYER_SET,
    }
)

_Likeness: TypeAlias = tuple[str, str, TensorClass]  # how both sides are stored, and what differs
_ON_GRID = frozenset({TensorClass.DIFFERENT_CODES, TensorClass.DIFFERENT_SCALES})  # plain numbers are fake-quantized

# By logical name and scheme: the least share of any matrix that was found to be made by it.
Explained: TypeAlias = Mapping[tuple[str, str], Explanation]


class _Group(NamedTuple):
    """Tensors that are looked at together: the unequal experts of a layer with their equal ones, or one tensor."""

    names: Mapping[Projection, str]
    unequal: tuple[str, ...]


class _Looked(NamedTuple):
    """Both sides, the tensors of them that are looked at, and what comparing left.

    Class and codes that differ are those of the first tensor that is unequal.
    """

    a: Side
    b: Side
    group: _Group
    found_class: TensorClass
    num_codes: int | None
    records: Records


@dataclass(slots=True)
class _Searched:
    """What was found in layers of one kind of difference.

    Attributes:
        num_failed: Layers that nothing explained.
        num_masters: Layers that were searched from masters.
        names: Mismatches that explained layers, and the least share of any.
    """

    num_failed: int = 0
    num_masters: int = 0
    names: dict[str, float] = field(default_factory=dict)


def diagnose_comparison(
    a: Side, b: Side, tensors: Iterable[TensorComparison], explained: Explained, records: Records
) -> tuple[Diagnosis, ...]:
    """Explains what a comparison found.

    Args:
        a: First side.
        b: Second side.
        tensors: What the comparison found.
        explained: Schemes that the matrices of tensors were found to be made by.
        records: What comparing their matrices left, by logical name and expert.
    """
    found = list(_rules(a, explained))
    searched: dict[_Likeness, _Searched] = {}
    compared = {tensor.name: tensor for tensor in tensors}
    classes = {name: tensor.tensor_class for name, tensor in compared.items()}
    schemes = list({e.found.name: e.found for e in explained.values() if e.found is not None}.values())
    for group in _groups(a, b, classes):
        kind = (_form(a, group), _form(b, group), classes[group.unequal[0]])
        state = searched.setdefault(kind, _Searched())
        looked = _Looked(a, b, group, kind[2], compared[group.unequal[0]].differing.codes, records)
        found += _diagnose_group(looked, schemes, state)
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
    shapes = [{source.shape for source in tensor.matrices.values()} for tensor in (a, b)]
    if any(len(found) != 1 or len(next(iter(found))) != 2 for found in shapes):  # experts of several make no stack
        return False
    is_turned_at_most = sorted(shapes[0].pop()) == sorted(shapes[1].pop())
    return is_readable and is_turned_at_most and a.matrices.keys() == b.matrices.keys()


def _form(side: Side, group: _Group) -> str:
    return side.tensors[group.unequal[0]].storage


def _diagnose_group(looked: _Looked, schemes: list[Scheme], state: _Searched) -> list[Diagnosis]:
    """Returns what explains most, and what explains single experts."""
    group = looked.group
    left = {projection: looked.a.tensors[name] for projection, name in group.names.items()}
    right = {projection: looked.b.tensors[name] for projection, name in group.names.items()}
    is_plain = [all(_is_plain(tensor) for tensor in side.values()) for side in (left, right)]
    is_fresh = state.num_failed < _MOST_LAYERS
    found: list[Diagnosis | None] = []
    alone: list[Diagnosis] = []
    if is_plain[0] != is_plain[1] and looked.found_class not in _ON_GRID and state.num_masters < _MOST_LAYERS:
        state.num_masters += 1
        found.append(_from_master(looked, left, right, schemes, is_first_master=is_plain[0]))
    if not any(one is not None and one.explains == 1 for one in found):
        of_layer, alone = _between(looked, left, right, state, is_swapped=is_plain[0] and not is_plain[1])
        found.append(of_layer)
    if not any(found) and not alone and not any(is_plain) and is_fresh:
        name = group.unequal[0]
        found.append(_by_codes(looked.a.tensors[name], looked.b.tensors[name], looked.num_codes))
    state.num_failed += not any(found) and not alone
    best = max((one for one in found if one is not None), key=lambda one: one.explains, default=None)
    return alone if best is None else [best.model_copy(update={"tensors": group.unequal}), *alone]


def _from_master(
    looked: _Looked,
    left: Mapping[Projection, LogicalTensor],
    right: Mapping[Projection, LogicalTensor],
    schemes: list[Scheme],
    *,
    is_first_master: bool,
) -> Diagnosis | None:
    """Returns the mismatch between what a scheme makes of the plain side and the packed one."""
    chosen = choose_unexplained(left, {name: looked.records.get(full, {}) for name, full in looked.group.names.items()})
    if chosen is not None:
        left, right = ({name: take_experts(one, chosen) for name, one in side.items()} for side in (left, right))
    master, served = (left, right) if is_first_master else (right, left)
    sides = {name: Sides(served=served[name], master=master[name]) for name in served}
    diagnosed, _ = diagnose_layer(sides, schemes)
    if diagnosed is None or diagnosed.found.explains < CONVINCING:
        return None
    named = diagnosed.found
    if chosen is not None and named.mismatch == permuted_experts.ABOUT.name:
        return None  # its words number the experts that were read
    scheme, where = diagnosed.scheme.name, ""
    if chosen is not None:
        where = ", " + name_experts({name: [chosen[e] for e in found] for name, found in diagnosed.experts.items()})
    return _diagnosis(
        named.kind, named.mismatch, named.field, f"{named.train} ({scheme})", named.serve + where, named.explains
    )


def _between(
    looked: _Looked,
    left: Mapping[Projection, LogicalTensor],
    right: Mapping[Projection, LogicalTensor],
    state: _Searched,
    *,
    is_swapped: bool,
) -> tuple[Diagnosis | None, list[Diagnosis]]:
    """Returns the mismatch that turns one quantized side into the other, and those of single experts beside it.

    Codes are known of a packed side only.
    """
    records = {projection: looked.records.get(name, {}) for projection, name in looked.group.names.items()}
    if is_swapped:
        left, right = right, left
        records = {name: {e: r._replace(a=r.b, b=r.a) for e, r in found.items()} for name, found in records.items()}
    layer = Between(known=left, other=right, records=records)
    is_fresh = state.num_failed < _MOST_LAYERS
    counted: list[Finding] = []
    if state.names:  # what explained layers like it is asked first
        counted = search_layer(layer, only=state.names)
    first = next((one for one in counted if one.is_convincing), None)
    is_as_before = first is not None and first.explains >= state.names[first.about.name] - _AS_BEFORE
    if not is_as_before and is_fresh:
        counted = search_layer(layer)
        first = next((one for one in counted if one.is_convincing), None)
    alone = search_alone(layer, counted, was_asked_all=not is_as_before) if is_fresh else []
    if first is not None:
        state.names[first.about.name] = min(first.explains, state.names.get(first.about.name, 1.0))
    names = looked.group.names
    found = [
        _name(one, tuple(names[p] for p in one.experts), name_experts(one.experts), is_swapped=is_swapped)
        for one in alone
    ]
    return None if first is None else _name(first, (), "", is_swapped=is_swapped), found


def _name(found: Finding, tensors: tuple[str, ...], where: str, *, is_swapped: bool) -> Diagnosis:
    train, serve = (found.serve, found.train) if is_swapped else (found.train, found.serve)
    one = _diagnosis(
        found.about.kind.value,
        found.about.name,
        found.about.field,
        train,
        ", ".join(filter(None, (serve, where))),
        found.explains,
    )
    return one.model_copy(update={"tensors": tensors})


def _by_codes(a: LogicalTensor, b: LogicalTensor, num_codes: int | None) -> Diagnosis | None:
    """Returns the scale rules that codes of packed sides point to; equal ones, under powers of two, point to one."""
    is_power = bool(_encodings(a) & {Encoding.MXFP4, Encoding.MXFP8})
    rules = None if is_power and num_codes == 0 else rules_by_codes(a, b)
    if rules is None:
        return None
    kind, field = (Kind.SCALE_RULE, "scale.rounding") if is_power else (Kind.RANGE, "scale.divisor")
    return _diagnosis(kind.value, "scale-rule", field, *rules, 0.0)


def _encodings(tensor: LogicalTensor) -> set[Encoding]:
    return {source.encoding for source in tensor.matrices.values()}


def _diagnosis(kind: str, mismatch: str, field: str, train: str, serve: str, explains: float) -> Diagnosis:
    return Diagnosis(kind=kind, mismatch=mismatch, field=field, train=train, serve=serve, explains=explains, tensors=())


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
