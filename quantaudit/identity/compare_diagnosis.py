"""What explains the differences of two checkpoints: rules that were found, structural mismatches, and code statistics.

    a master against codes     the scheme that makes them (`compare_rules`), else the mismatch that comes on top of the
                               likeliest one
    two quantized sides        the mismatch that turns one into the other; else, of two packed sides, the scale rules
                               that their codes point to, where these are not the same

A fault rarely hits one layer alone: what explained one is asked first of others with the same kind of difference, and
after a few layers that nothing explains, nothing else is. It may hit single experts: beside what explains a layer, what
explains most of a single expert is named with that expert, and its share of the layer. It may hit single tensors of a
layer: only those are named, and the others are looked at again by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from quantaudit.core.comparison import Diagnosis, Encoding, TensorClass, TensorComparison
from quantaudit.core.scheme import Scheme
from quantaudit.identity.compare_alone import choose_unexplained, name_experts, search_alone, take_experts
from quantaudit.identity.compare_between import search_layer
from quantaudit.identity.compare_codes import rules_by_codes
from quantaudit.identity.compare_confirm import within
from quantaudit.identity.compare_leads import Between
from quantaudit.identity.compare_record import Records
from quantaudit.identity.compare_rules import Explained, is_plain, name_rules
from quantaudit.identity.diagnose import Diagnosed
from quantaudit.identity.identify_layer import Sides, diagnose_layer
from quantaudit.identity.layouts.logical import LogicalTensor, Side
from quantaudit.identity.mismatches import permuted_experts
from quantaudit.identity.mismatches.protocol import CONVINCING, Finding, Kind, Projection

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

# How both sides are stored, what differs, and whether something else explained other tensors of the layer.
_Likeness: TypeAlias = tuple[str, str, TensorClass, bool]
_ON_GRID = frozenset({TensorClass.DIFFERENT_CODES, TensorClass.DIFFERENT_SCALES})  # plain numbers are fake-quantized


class _Group(NamedTuple):
    """Tensors that are looked at together: the unequal experts of a layer with their equal ones, or one tensor.

    `is_rest` where something else explained others of them.
    """

    names: Mapping[Projection, str]
    unequal: tuple[str, ...]
    is_rest: bool = False

    def without(self, explained: Collection[str]) -> _Group | None:
        """Returns the tensors that nothing explained, of those that differ; `None` if there are none or no others."""
        left = {projection: name for projection, name in self.names.items() if name not in explained}
        unequal = tuple(name for name in self.unequal if name not in explained)
        return _Group(left, unequal, True) if unequal and len(unequal) < len(self.unequal) else None

    def unequal_in(self, projections: Collection[Projection]) -> tuple[str, ...]:
        """Returns the names of the projections that differ, of some."""
        return tuple(name for p, name in self.names.items() if p in projections and name in self.unequal)


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
    searched: dict[_Likeness, _Searched] = {}
    compared = {tensor.name: tensor for tensor in tensors}
    classes = {name: tensor.tensor_class for name, tensor in compared.items()}
    schemes = list({e.found.name: e.found for e in explained.values() if e.found is not None}.values())
    found = list(name_rules(a, b, classes, explained))
    groups = _groups(a, b, classes)[::-1]
    while groups:
        group = groups.pop()
        kind = (_form(a, group), _form(b, group), classes[group.unequal[0]], group.is_rest)
        state = searched.setdefault(kind, _Searched())
        looked = _Looked(a, b, group, kind[2], compared[group.unequal[0]].differing.codes, records)
        of_group, alone = _diagnose_group(looked, schemes, state)
        found += [*of_group, *alone]
        rest = group.without([name for one in of_group for name in one.tensors])
        groups += [] if rest is None else [rest]
    return _merged(found)


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


def _diagnose_group(
    looked: _Looked, schemes: list[Scheme], state: _Searched
) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """Returns what explains most of the tensors that it names, and what explains single experts."""
    group = looked.group
    left = {projection: looked.a.tensors[name] for projection, name in group.names.items()}
    right = {projection: looked.b.tensors[name] for projection, name in group.names.items()}
    are_plain = [all(is_plain(tensor) for tensor in side.values()) for side in (left, right)]
    is_fresh = state.num_failed < _MOST_LAYERS
    found: list[Diagnosis] = []
    alone: list[Diagnosis] = []
    if are_plain[0] != are_plain[1] and looked.found_class not in _ON_GRID and state.num_masters < _MOST_LAYERS:
        state.num_masters += 1
        found = _from_master(looked, left, right, schemes, is_first_master=are_plain[0])
    if not any(one.explains == 1 for one in found):
        of_layer, alone = _between(looked, left, right, state, is_swapped=are_plain[0] and not are_plain[1])
        if of_layer is not None and all(of_layer.explains > one.explains for one in found):
            found = [of_layer]
    if not found and not alone and not any(are_plain) and is_fresh:
        name = group.unequal[0]
        by_codes = _by_codes(looked.a.tensors[name], looked.b.tensors[name], looked.num_codes)
        found = [] if by_codes is None else [by_codes.model_copy(update={"tensors": group.unequal})]
    state.num_failed += not found and not alone
    return found, alone


def _from_master(
    looked: _Looked,
    left: Mapping[Projection, LogicalTensor],
    right: Mapping[Projection, LogicalTensor],
    schemes: list[Scheme],
    *,
    is_first_master: bool,
) -> list[Diagnosis]:
    """Returns the mismatches between what a scheme makes of the plain side and the packed one."""
    chosen = choose_unexplained(left, {name: looked.records.get(full, {}) for name, full in looked.group.names.items()})
    if chosen is not None:
        left, right = ({name: take_experts(one, chosen) for name, one in side.items()} for side in (left, right))
    master, served = (left, right) if is_first_master else (right, left)
    sides = {name: Sides(served=served[name], master=master[name]) for name in served}
    diagnosed, _ = diagnose_layer(sides, schemes)
    parts = () if diagnosed is None else diagnosed.apart or (diagnosed,)
    found = [_of_part(looked.group, part, chosen) for part in parts]
    return [one for one in found if one is not None and one.tensors]


def _of_part(group: _Group, diagnosed: Diagnosed, chosen: Sequence[int] | None) -> Diagnosis | None:
    named = diagnosed.found
    if named.explains < CONVINCING:
        return None
    if chosen is not None and named.mismatch == permuted_experts.ABOUT.name:
        return None  # its words number the experts that were read
    scheme, where = diagnosed.scheme.name, ""
    if chosen is not None:
        where = ", " + name_experts({name: [chosen[e] for e in found] for name, found in diagnosed.experts.items()})
    one = _diagnosis(
        named.kind, named.mismatch, named.field, f"{named.train} ({scheme})", named.serve + where, named.explains
    )
    return one.model_copy(update={"tensors": group.unequal_in(diagnosed.projections)})


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
    was_asked_all = not is_as_before
    tensors: tuple[str, ...] = ()
    if first is not None:
        state.names[first.about.name] = min(first.explains, state.names.get(first.about.name, 1.0))
        tensors = looked.group.unequal_in(first.convinces_in)
        if len(tensors) < len(looked.group.unequal):  # the others are looked at by themselves
            was_asked_all = False
            layer = layer.within(first.convinces_in)
            counted = [one for each in counted if (one := within(each, first.convinces_in)) is not None]
            first = within(first, first.convinces_in)
    alone = search_alone(layer, counted, was_asked_all=was_asked_all) if is_fresh else []
    names = looked.group.names
    found = [
        _name(one, tuple(names[p] for p in one.experts), name_experts(one.experts), is_swapped=is_swapped)
        for one in alone
    ]
    return None if first is None else _name(first, tensors, "", is_swapped=is_swapped), found


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
