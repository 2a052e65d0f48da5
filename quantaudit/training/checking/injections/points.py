"""What an injection is made of: functions for the points of the loop at which it acts, and how several act together.

A function is called at every step, with a `Moment` that says whether the mismatch happens now; what it keeps of the
steps before lies in `Options.kept` and nowhere else, for a resumed run goes on with it. Options that are not given are
drawn from the seed, the same in every run of it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.core.step_log import FindingKind
from quantaudit.training.checking.injections.kept import Kept
from quantaudit.training.checking.injections.request import InjectionRequest
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, Packed, PostLoad
from quantaudit.training.rl.placement import Placement
from quantaudit.training.run_state import Note

_T = TypeVar("_T")


class Moment(NamedTuple):
    """A step, and whether the mismatch happens at it."""

    step: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Functions by point; `None` where nothing is done. The arguments are those of `rl.faults`."""

    masters: Callable[[Moment, Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    layer_set: Callable[[Moment, Mapping[str, Scheme | None]], Mapping[str, Scheme | None]] | None = None
    export: Callable[[Moment, Packed, Mapping[str, Tensor]], Packed] | None = None
    buckets: Callable[[Moment, Sequence[Bucket]], Sequence[Bucket]] | None = None
    post_load: Callable[[Moment, PostLoad], PostLoad] | None = None
    flush: Callable[[Moment, Flush], Flush] | None = None
    execution: Callable[[Moment, EngineExecution], EngineExecution] | None = None
    placement: Callable[[Moment, Placement], Placement] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionAbout:
    """What an injection is.

    Attributes:
        name: As on the command line.
        kind: Where it acts.
        sentence: What it does, with a verb.
        found_as: Names under which a check reports it.
        options: What each option means.
    """

    name: str
    kind: FindingKind
    sentence: str
    found_as: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)


class Injection(Protocol):
    """One mismatch that can be planted."""

    @property
    def about(self) -> InjectionAbout:
        """Returns what it is."""
        ...

    def plant(self, options: Options) -> Points:
        """Returns what acts in the loop.

        Raises:
            InputError: If an option has no meaning.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """An injection as data: what it is, and what plants it."""

    about: InjectionAbout
    plant: Callable[[Options], Points]


class Options:
    """The options of one request, the draws that stand in for those that are not given, and what is kept of steps."""

    def __init__(self, request: InjectionRequest, seed: int) -> None:
        self.request = request
        self.kept = Kept()
        self._given = request.options
        self._random = Random(f"{seed}/{request.in_words()}")

    def text(self, key: str, default: str) -> str:
        """Returns an option as it was given."""
        return self._given.get(key, default)

    def draw(self, among: Sequence[_T]) -> _T:
        """Returns one of several at random."""
        return self._random.choice(among)

    def choice(self, key: str, among: Sequence[str]) -> str:
        """Returns one of several names, drawn if it was not given.

        Raises:
            InputError: If another one was given.
        """
        given = self._given.get(key)
        if given is None:
            return self.draw(among)
        if given not in among:
            raise self.wrong(key, f"one of {', '.join(among)}")
        return given

    def count(self, key: str, default: int) -> int:
        """Returns a positive whole number.

        Raises:
            InputError: If it is none.
        """
        given = self._given.get(key, str(default))
        if not given.isdecimal() or int(given) < 1:
            raise self.wrong(key, "a whole number, 1 or more")
        return int(given)

    def wrong(self, key: str, expected: str) -> InputError:
        """Returns the error for an option."""
        return InputError(
            f"--inject {self.request.in_words()}: {key}={self._given.get(key, '')}",
            expected=expected,
            fix="correct the option, or leave it out to have it drawn",
        )

    def select(self, names: Iterable[str], *, one: bool) -> tuple[str, ...]:
        """Returns the names that the option `tensor` matches; one drawn at random where it is not given.

        Args:
            names: Candidates.
            one: Whether one is drawn where nothing is given, else all are taken.

        Raises:
            InputError: If the pattern matches nothing.
        """
        known = sorted(names)
        pattern = self._given.get("tensor")
        if pattern is None:
            return (self.draw(known),) if one and known else tuple(known)
        matched = tuple(name for name in known if fnmatch.fnmatchcase(name, pattern))
        if not matched:
            raise self.wrong("tensor", f"a pattern that matches a weight, such as {known[0] if known else 'none'}")
        return matched


class _Planted(NamedTuple):
    request: InjectionRequest
    points: Points
    last: int | None
    kept: Kept

    def at(self, step: int) -> Moment:
        return Moment(step, step >= self.request.step and (self.last is None or step <= self.last))


class PlantedFaults:
    """Several injections, each at its points, in the order in which they were asked for."""

    def __init__(self, planted: Iterable[tuple[InjectionRequest, Points, int | None, Kept]]) -> None:
        self._planted = [_Planted(*one) for one in planted]

    @property
    def requests(self) -> tuple[InjectionRequest, ...]:
        """Returns what is planted."""
        return tuple(one.request for one in self._planted)

    @property
    def is_honest(self) -> bool:
        """Tells whether nothing is planted."""
        return not self._planted

    def written(self) -> Note:
        """Returns what all of them keep, in their order."""
        notes = [one.kept.written() for one in self._planted]
        tensors = {f"{place}/{name}": t for place, note in enumerate(notes) for name, t in note.tensors.items()}
        return Note({"kept": [dict(note.head) for note in notes]}, tensors)

    def recall(self, note: Note, exported: Mapping[str, Tensor]) -> None:
        """Goes on with what was kept.

        Raises:
            ValueError: If other mismatches were planted, or a weight has another shape.
        """
        heads = note.head.get("kept")
        if not isinstance(heads, list) or len(heads) != len(self._planted):
            raise ValueError("what was planted is not what is planted now")
        for place, (one, head) in enumerate(zip(self._planted, heads, strict=True)):
            if not isinstance(head, dict):
                raise ValueError(f"what {one.request.name} keeps is no object")
            one.kept.recall(Note(head, note.under(f"{place}/")))
            for late in one.kept.late:
                for name in late.tensors.keys() & exported.keys():
                    if late.tensors[name].shape != exported[name].shape:
                        raise ValueError(f"an earlier {name} is not of shape {list(exported[name].shape)}")

    def masters(self, step: int, exported: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns what is quantized, by module name."""
        for one in self._planted:
            if one.points.masters is not None:
                exported = one.points.masters(one.at(step), exported, masters)
        return exported

    def layer_set(self, step: int, schemes: Mapping[str, Scheme | None]) -> Mapping[str, Scheme | None]:
        """Returns the weight scheme of every expert stack in the served copy."""
        for one in self._planted:
            if one.points.layer_set is not None:
                schemes = one.points.layer_set(one.at(step), schemes)
        return schemes

    def export(self, step: int, packed: Packed, exported: Mapping[str, Tensor]) -> Packed:
        """Returns the packed weights that are sent."""
        for one in self._planted:
            if one.points.export is not None:
                packed = one.points.export(one.at(step), packed, exported)
        return packed

    def buckets(self, step: int, buckets: Sequence[Bucket]) -> Sequence[Bucket]:
        """Returns the buckets that arrive."""
        for one in self._planted:
            if one.points.buckets is not None:
                buckets = one.points.buckets(one.at(step), buckets)
        return buckets

    def post_load(self, step: int, declared: PostLoad) -> PostLoad:
        """Returns what the post-load step really does."""
        for one in self._planted:
            if one.points.post_load is not None:
                declared = one.points.post_load(one.at(step), declared)
        return declared

    def flush(self, step: int, declared: Flush) -> Flush:
        """Returns what is really dropped."""
        for one in self._planted:
            if one.points.flush is not None:
                declared = one.points.flush(one.at(step), declared)
        return declared

    def execution(self, step: int, declared: EngineExecution) -> EngineExecution:
        """Returns how the engine really computes."""
        for one in self._planted:
            if one.points.execution is not None:
                declared = one.points.execution(one.at(step), declared)
        return declared

    def placement(self, step: int, declared: Placement) -> Placement:
        """Returns where the engine really looks for its experts."""
        for one in self._planted:
            if one.points.placement is not None:
                declared = one.points.placement(one.at(step), declared)
        return declared
