"""Two runs, item by item: what both answered is paired, what only one answered is kept in sight, the rest is refused.

Two runs are comparable if they were asked the same. Every digest that both files hold is compared for every item
(prompt, target, template, tokenizer), and one difference refuses the pair: a paired difference of two different
questions says nothing about the models.

Legend: P probes, the items of either run in the order of hi, then of lo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import Probe, ProbeSet, Split
from quantaudit.evaluation.recorded.items import Asked, Format, Item, Recording
from quantaudit.evaluation.recorded.json_text import shown
from quantaudit.evaluation.table import Table
from quantaudit.observers.metric import Readings

OBSERVERS = ("nll", "accuracy", "score", "answer-margin", "refusal-rate", "refusal-margin")
MAX_FAMILIES = 500  # more are a column that names items, and each would be judged on its own
_PLAIN = {Format.JSONL, Format.CSV}
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The numbers of one run over the probes of a pair.

    Attributes:
        value_P: By observer; anything where nothing is recorded.
        has_P: By observer, whether a number is recorded.
    """

    value_P: dict[str, NDArray[np.float64]]
    has_P: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two comparable runs.

    Attributes:
        probes: Items of either run.
        hi: Numbers of the reference.
        lo: Numbers of the deployment.
        only_hi: Ids that hi alone has.
        only_lo: Ids that lo alone has.
        uncompared: What no digest on both sides says was equal, in all items or some.
    """

    probes: ProbeSet
    hi: Side
    lo: Side
    only_hi: tuple[str, ...]
    only_lo: tuple[str, ...]
    uncompared: tuple[Asked, ...]

    @property
    def num_common(self) -> int:
        """Items that both runs have."""
        return len(self.probes.probes) - len(self.only_hi) - len(self.only_lo)


def pair_up(hi: Recording, lo: Recording) -> Pair:
    """Pairs two runs by the ids of their items.

    Raises:
        InputError: If they are not comparable: other formats, metrics, questions, groups.
        NotMeasuredError: If they have no item in common.
    """
    uncompared = check_comparable(hi, lo)
    hi_items, lo_items = ({item.id: item for item in run.items} for run in (hi, lo))
    items = {**lo_items, **hi_items}  # where both have an item they agree on all that a probe is made of
    order = [*hi_items, *(name for name in lo_items if name not in hi_items)]
    probes = _make_probes([items[name] for name in order], f"{hi.name} and {lo.name}")
    return Pair(
        probes=probes,
        hi=make_side(order, hi_items),
        lo=make_side(order, lo_items),
        only_hi=tuple(name for name in hi_items if name not in lo_items),
        only_lo=tuple(name for name in lo_items if name not in hi_items),
        uncompared=uncompared,
    )


def check_comparable(hi: Recording, lo: Recording) -> tuple[Asked, ...]:
    """Checks that two runs were asked the same; returns what no digest tells for every common item.

    Raises:
        InputError: If they are not comparable.
        NotMeasuredError: If they have no item in common.
    """
    _check_kinds(hi, lo)
    hi_items, lo_items = ({item.id: item for item in run.items} for run in (hi, lo))
    common = [name for name in hi_items if name in lo_items]
    if not common:
        raise NotMeasuredError(_nothing_common(hi, lo))
    _check_grouping(common, hi_items, lo_items)
    return _find_uncompared(common, hi_items, lo_items)


def make_side(order: list[str], items: Mapping[str, Item]) -> Side:
    """Returns the numbers of one run in the order of the probes; right and wrong are graded scores too."""
    found = [items.get(name) for name in order]
    values: dict[str, list[float | None]] = {
        observer: [None if item is None else item.values.get(observer) for item in found] for observer in OBSERVERS
    }
    values["score"] = values["accuracy"]
    has_P = {name: np.array([v is not None for v in column], dtype=bool) for name, column in values.items()}
    value_P = {name: np.array([0.0 if v is None else v for v in column]) for name, column in values.items()}
    return Side(value_P=value_P, has_P=has_P)


def table_of(hi: Side, lo: Side) -> Table:
    """Returns the comparison over everything that both sides hold."""
    table = Table()
    for observer in OBSERVERS:
        index_R = np.flatnonzero(hi.has_P[observer] & lo.has_P[observer])
        if len(index_R):
            hi_R, lo_R = hi.value_P[observer][index_R], lo.value_P[observer][index_R]
            table.parts[observer] = [Readings(index_R=index_R, hi_R=hi_R, lo_R=lo_R)]
    return table


def name_some(names: Iterable[str]) -> str:
    """Returns the first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in listed[:_SHOWN]) + more


def _check_kinds(hi: Recording, lo: Recording) -> None:
    if hi.format is not lo.format and not {hi.format, lo.format} <= _PLAIN:
        raise InputError(
            f"{hi.name} is {hi.format.value} and {lo.name} is {lo.format.value}",
            expected="both runs recorded by one tool",
            fix="record both alike, or write both as plain JSONL or CSV",
        )
    if hi.metric != lo.metric:
        raise InputError(
            f"accuracy is {hi.metric or 'nothing'} in {hi.name} and {lo.metric or 'nothing'} in {lo.name}",
            expected="one metric in both",
            fix="choose one that both have with --metric",
        )


def _nothing_common(hi: Recording, lo: Recording) -> str:
    def describe(run: Recording) -> str:
        if not run.items:
            return f"{run.name} has no item"
        families = name_some(dict.fromkeys(item.family for item in run.items))
        return f"{run.name} has {len(run.items):,} items of {families}, such as {name_some([run.items[0].id])}"

    return f"no item is in both files, so nothing was paired: {describe(hi)}; {describe(lo)}"


def _check_grouping(common: list[str], hi: Mapping[str, Item], lo: Mapping[str, Item]) -> None:
    """Checks that both runs say the same of every item they share."""
    for name in common:
        one, two = hi[name], lo[name]
        if (one.family, one.cluster, one.behaviour) == (two.family, two.cluster, two.behaviour):
            continue
        for word in ("family", "cluster", "behaviour"):
            if getattr(one, word) != getattr(two, word):
                raise InputError(
                    f"the item {shown(name)} with {word} {getattr(one, word)} in one file and {getattr(two, word)} "
                    "in the other",
                    expected=f"one {word} for an item",
                    fix="pair recordings of the same items",
                )


def _find_uncompared(common: list[str], hi: Mapping[str, Item], lo: Mapping[str, Item]) -> tuple[Asked, ...]:
    """Compares every digest that both files hold; returns those that some common item lacks on a side.

    Raises:
        InputError: If one differs somewhere.
    """
    for kind, others in _find_other(common, hi, lo).items():
        name = others[0]
        raise InputError(
            f"another {kind.value} for {len(others):,} of {len(common):,} items, first {shown(name)}: digest "
            f"{shown(hi[name].asked[kind])} in hi and {shown(lo[name].asked[kind])} in lo",
            expected=f"the same {kind.value} on both sides",
            fix="record both runs with the same data, prompts, chat template and tokenizer",
        )
    shapes = {tuple(side[name].asked) for name in common for side in (hi, lo)}
    return tuple(kind for kind in Asked if any(kind not in shape for shape in shapes))


def _find_other(common: list[str], hi: Mapping[str, Item], lo: Mapping[str, Item]) -> dict[Asked, list[str]]:
    """Returns, by digest, the items for which the two files hold different ones."""
    found: dict[Asked, list[str]] = {}
    for name in common:
        one, two = hi[name].asked, lo[name].asked
        if one != two:
            for kind in Asked:
                if kind in one and kind in two and one[kind] != two[kind]:
                    found.setdefault(kind, []).append(name)
    return {kind: found[kind] for kind in Asked if kind in found}


def _make_probes(items: list[Item], source: str) -> ProbeSet:
    families = {item.family for item in items}
    if len(families) > MAX_FAMILIES:
        raise InputError(
            f"{len(families):,} families",
            expected=f"at most {MAX_FAMILIES}: each is judged on its own",
            fix="name groups of items in the column family, and units of dependence in the column cluster",
        )
    probes = tuple(
        Probe(
            id=item.id,
            family=item.family,
            behaviour=item.behaviour,
            cluster=item.cluster or item.id,
            split=Split.AUDIT,
            prompt=item.asked.get(Asked.PROMPT, ""),
            response=item.asked.get(Asked.TARGET, ""),
        )
        for item in items
    )
    return ProbeSet(name="recorded", source=source, probes=probes)
