"""The rule that separates two sides: fields of two schemes compared, after finding which scheme a side really is.

A side that is not read (a library, a callable) is matched against the scheme it claims to be, its relatives in the
catalogue, and everything one or two changes away from the claim, on all values of some statistics: in the binade of 1,
where scales change their mind, far below it, where floors act, and wherever the sides were seen to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple, TypeAlias

import torch
from pydantic import ValidationError

from quantaudit.core.certificate import RuleDifference
from quantaudit.core.format import BF16, FP16, FP32, FloatFormat, FormatKind, IntegerFormat
from quantaudit.core.scheme import (
    Arithmetic,
    CodeRange,
    Division,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    LinearScale,
    Scheme,
    Tie,
)
from quantaudit.core.serial import Json
from quantaudit.identity.differences import is_equal_in_value, is_same
from quantaudit.identity.domain import BF16_INPUT, Block, ladder_block
from quantaudit.identity.fast_reference import has_staircase
from quantaudit.identity.laying import lay_out
from quantaudit.identity.observe import is_signed, observe
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side, open_scheme
from quantaudit.numerics.catalogue import bundled_schemes

_DIVISORS = (6.0, 7.0, 7.5, 8.0, 127.0, 127.5, 128.0, 240.0, 448.0)
_FLOORS = (2.0**-126, 1e-10, 1e-8, 1e-5, 1e-4)
_FAR_BELOW = (-12, -18, -28, -70)
_NOT_COMPARED = ("name", "source", "layout", "schema_version")
_FOLLOWS = {"scale.kept_mantissa_bits": "scale.rounding"}  # a field that has no meaning without the other

Change: TypeAlias = Mapping[str, object]


class Seen(NamedTuple):
    """What a side made of the blocks that matching looks at."""

    blocks: tuple[Block, ...]
    outcomes: tuple[Outcome, ...]
    out_dtype: torch.dtype


def see(side: Side, out_dtype: torch.dtype, extra_ranks: tuple[int, ...]) -> Seen:
    """Runs a side on the blocks by which it is matched (bf16).

    Args:
        side: The side.
        out_dtype: Of decoded values where the side leaves it open.
        extra_ranks: Ranks of statistics under which the sides were seen to differ.
    """
    one = BF16_INPUT.rank_of_one
    near_one = torch.tensor(sorted({*range(one, one + 128, 9), one + 0x40, one + 0x41, one + 0x60, one + 127}))
    lists = [near_one[:2], near_one[2:]]
    lists += [torch.arange(one + (e << 7), one + (e << 7) + 128, 43) for e in _FAR_BELOW]
    lists += [torch.tensor([rank]) for rank in extra_ranks]
    blocks = tuple(ladder_block(ranks, BF16_INPUT) for ranks in lists)
    outcomes = []
    for block in blocks:
        laid_out = None if side.has_stairs else lay_out(block, side.scheme, is_statistic_first=True)
        outcomes.append(observe(side, block, laid_out, out_dtype))
    return Seen(blocks, tuple(outcomes), out_dtype)


def find_scheme(side: Side, seen: Seen) -> Scheme | None:
    """Returns a scheme that gives what the side gave, the claimed one first; `None` if none does.

    Codes count before values alone do: some libraries lose the sign of zero and are right otherwise.
    """
    if side.is_scheme:
        return side.scheme
    candidates = list(_candidates(side.scheme))
    exact = next((scheme for scheme in candidates if gives(scheme, seen, is_same)), None)
    return exact or next((scheme for scheme in candidates if gives(scheme, seen, is_equal_in_value)), None)


def gives(scheme: Scheme, seen: Seen, agree: Callable[[Outcome, Outcome], bool]) -> bool:
    """Returns whether a scheme gives what was seen, as `agree` compares it."""
    if not has_staircase(scheme):
        return False
    side = open_scheme(scheme)
    return all(
        agree(observe(side, block, None, outcome.values_BM.dtype), outcome)
        for block, outcome in zip(seen.blocks, seen.outcomes, strict=True)
    )


def explain(a: Scheme, b: Scheme, seen_b: Seen | None) -> tuple[RuleDifference, ...]:
    """Lists the fields in which two schemes differ, one that alone turns the first into the second in front.

    Args:
        a: The first scheme.
        b: The second.
        seen_b: What the second gave; without it the fields stay in the order of the record.
    """
    left, right = _leaves(a), _leaves(b)
    fields = [f for f in dict.fromkeys([*left, *right]) if left.get(f) != right.get(f)]
    fields = [f for f in fields if _FOLLOWS.get(f) not in fields]
    if "scale.kind" in fields:
        fields = ["scale.kind", *(f for f in fields if not f.startswith("scale."))]
    if seen_b is not None:
        fields.sort(key=lambda f: not _is_decisive(f, a, b, seen_b))
    return tuple(RuleDifference(field=f, a_value=_text(left.get(f)), b_value=_text(right.get(f))) for f in fields)


def _is_decisive(field: str, a: Scheme, b: Scheme, seen_b: Seen) -> bool:
    """Returns whether the first scheme with this one field of the second gives what the second side gave."""
    head, _, tail = field.partition(".")
    if not tail or field == "scale.kind":
        change: Change = {head: getattr(b, head)}
    else:
        names = [tail, *(f.partition(".")[2] for f, leader in _FOLLOWS.items() if leader == field)]
        update = {name: getattr(b.scale, name) for name in names if hasattr(b.scale, name)}
        change = {head: a.scale.model_copy(update=update)}
    mixed = _changed(a, change)
    return mixed is not None and gives(mixed, seen_b, is_equal_in_value)


def _candidates(claim: Scheme) -> Iterator[Scheme]:
    yield claim
    for scheme in bundled_schemes():
        if scheme.granularity == claim.granularity and scheme.element.bits == claim.element.bits:
            yield scheme
    changes = list(_changes(claim))
    for count in (1, 2):
        for chosen in combinations(changes, count):
            if len({_place(change) for change in chosen}) < count:
                continue
            merged = _merge(claim, chosen)
            if merged is not None:
                yield merged


def _changes(claim: Scheme) -> Iterator[Change]:
    """Yields single changes: fields of the scheme, or of its scale under the key `scale`."""
    ties = [tie for tie in Tie if tie is not Tie.BIASED_UP or claim.element.kind is FormatKind.INTEGER]
    yield from ({"tie": tie} for tie in ties if tie is not claim.tie)
    yield from ({"division": way} for way in Division if way is not claim.division)
    yield from ({"arithmetic": where} for where in Arithmetic if where is not claim.arithmetic)
    if isinstance(claim.element, IntegerFormat):
        largest = claim.element.max_code
        for low in (-largest - 1, -largest):
            if claim.code_range != CodeRange(low=low, high=largest):
                yield {"code_range": CodeRange(low=low, high=largest)}
    if isinstance(claim.scale, ExponentScale):
        yield from _exponent_changes(claim)
    else:
        yield from _linear_changes(claim.scale)
        # A library that computes in the dtype of its input mostly does so throughout.
        yield {"arithmetic": Arithmetic.INPUT, "scale": {"arithmetic": Arithmetic.INPUT}}


def _exponent_changes(claim: Scheme) -> Iterator[Change]:
    kept = claim.element.mantissa_bits if isinstance(claim.element, FloatFormat) else 1
    for rounding in ExponentRounding:
        for bits in sorted({1, kept}) if rounding is ExponentRounding.EVEN else [None]:
            yield {"scale": {"rounding": rounding, "kept_mantissa_bits": bits}}
    yield from ({"scale": {"amax_floor": floor}} for floor in _FLOORS)


def _linear_changes(rule: LinearScale) -> Iterator[Change]:
    yield from ({"scale": {"divisor": divisor}} for divisor in _DIVISORS if divisor != rule.divisor)
    yield from ({"scale": {"division": way}} for way in Division if way is not rule.division)
    yield from ({"scale": {"arithmetic": where}} for where in Arithmetic if where is not rule.arithmetic)
    yield from ({"scale": {"format": fmt}} for fmt in (FP32, BF16, FP16) if fmt != rule.format)
    yield from ({"scale": {"encode_with": which}} for which in EncodeScale if which is not rule.encode_with)
    for name in ("amax_floor", "scale_floor", "encode_floor"):
        yield from ({"scale": {name: floor}} for floor in _FLOORS)


def _place(change: Change) -> str:
    """Names the field that a change is of, so that two changes of one field are not combined."""
    head, value = next(iter(change.items()))
    return f"{head}.{next(iter(value))}" if isinstance(value, dict) else head


def _merge(claim: Scheme, changes: tuple[Change, ...]) -> Scheme | None:
    merged: dict[str, object] = {}
    in_scale: dict[str, object] = {}
    for change in changes:
        for head, value in change.items():
            if isinstance(value, dict):
                in_scale.update(value)
            else:
                merged[head] = value
    if in_scale:
        merged["scale"] = claim.scale.model_copy(update=in_scale)
    named = {**merged, **{f"scale.{key}": value for key, value in in_scale.items()}}
    words = [f"{key} = {_text(_plain(value))}" for key, value in named.items() if key != "scale"]
    changed = _changed(claim, merged)
    return None if changed is None else changed.model_copy(update={"name": f"{claim.name} with {', '.join(words)}"})


def _changed(scheme: Scheme, update: Change) -> Scheme | None:
    """Returns a scheme with other fields, or `None` where they do not fit together."""
    try:
        return Scheme.model_validate(scheme.model_copy(update=update).model_dump())
    except ValidationError:
        return None


def _leaves(scheme: Scheme) -> dict[str, Json]:
    """Returns the arithmetic as flat fields; element and granularity stay whole."""
    dump = scheme.model_dump(mode="json")
    flat: dict[str, Json] = {}
    for key, value in dump.items():
        if key == "scale":
            flat.update({f"scale.{name}": part for name, part in value.items()})
        elif key not in _NOT_COMPARED:
            flat[key] = value
    return flat


def _plain(value: object) -> Json:
    if isinstance(value, CodeRange | FloatFormat):
        return value.model_dump(mode="json")
    return value if isinstance(value, str | int | float) else str(value)


def _text(value: Json) -> str:
    """Returns a field for people."""
    if isinstance(value, dict):
        if "table" in value or "exponent_bits" in value:
            return str(value["name"])
        return ", ".join(f"{key} {part}" for key, part in value.items() if part is not None)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def can_be_matched(scheme: Scheme) -> bool:
    """Returns whether sides of this scheme can be matched: its statistic is one positive number."""
    return has_staircase(scheme) and not is_signed(scheme)
