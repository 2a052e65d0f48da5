"""One logical tensor: the scheme that gives all of its matrices, or what their codes say where there is no master.

The first matrix is searched; every other one is only checked, and searched again where that fails, so that the experts
of a layer cost little more than reading them. A scheme found later, on a matrix that shows more, is taken back to the
earlier ones: a tensor has one scheme unless its matrices contradict each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

from quantaudit.core.comparison import DifferingCounts
from quantaudit.core.identification import Standing, TensorIdentification, describe_rule
from quantaudit.core.scheme import Scheme
from quantaudit.identity.histogram import judge_codes, read_all_codes
from quantaudit.identity.search import Found, count_misses, is_related, is_unquantized, search
from quantaudit.identity.search_sample import Misses, Served, global_ratio


class Both(NamedTuple):
    """One matrix: its master, [R, C], and what is served."""

    master: Tensor
    served: Served


Readers: TypeAlias = Mapping[int, Callable[[], Both]]


@dataclass(slots=True, kw_only=True)
class Progressing:
    """What is known of the matrices seen so far, by their numbers.

    Attributes:
        misses: What the scheme of a matrix does not give of it.
        scheme_of: The scheme of every quantized matrix.
        num_values: Values of all of them.
        unquantized: Matrices that are their masters.
        global_ratios: How many times that of its scheme a global scale is, where all below it is as the scheme says.
        first: The search that found the scheme.
    """

    misses: dict[int, Misses] = field(default_factory=dict)
    scheme_of: dict[int, Scheme] = field(default_factory=dict)
    num_values: int = 0
    unquantized: list[int] = field(default_factory=list)
    global_ratios: dict[int, float] = field(default_factory=dict)
    first: Found | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Which tensor it is: logical name, shape of one matrix, how it is stored, and a remark."""

    name: str
    shape: tuple[int, ...]
    storage: str
    note: str = ""


class Identified(NamedTuple):
    """What was found, the scheme of the tensor, and the matrices that it does not give."""

    tensor: TensorIdentification
    scheme: Scheme | None
    unexplained: tuple[int, ...]


def identify_tensor(about: Described, readers: Readers) -> Identified:
    """Finds the scheme of a tensor from its masters.

    Args:
        about: Which tensor it is.
        readers: Reads a matrix on both sides, by expert; both of one shape.
    """
    state = Progressing()
    for number, read in readers.items():
        both = read()
        _look(number, both, state, readers)
        _look_above(number, both, state)
    return _conclude(about, state, len(readers))


def read_alone(about: Described, matrices: Mapping[int, Callable[[], Served]]) -> TensorIdentification:
    """Says what the codes of a tensor prove without a master.

    Args:
        about: Which tensor it is.
        matrices: Reads a quantized matrix, by expert.
    """
    element, whole = read_all_codes(read() for read in matrices.values())
    standing, rule, sentence = judge_codes(whole)
    return TensorIdentification(
        name=about.name,
        standing=standing,
        shape=about.shape,
        num_matrices=len(matrices),
        storage=about.storage,
        scheme=f"{element} with scale rule {rule}" if rule else "",
        evidence=whole,
        note=sentence,
    )


def _look(number: int, both: Both, state: Progressing, readers: Readers) -> None:
    """Looks at one matrix."""
    state.num_values += both.master.numel()
    if is_unquantized(both.master, both.served):
        state.unquantized.append(number)
        return
    if not is_related(both.master, both.served):
        state.misses[number] = Misses(values=both.master.numel())
        return
    scheme = state.first.scheme if state.first is not None else None
    if scheme is not None:
        misses = count_misses(both.master, both.served, scheme)
        state.misses[number], state.scheme_of[number] = misses, scheme
        if misses.values == 0:
            return
    found = search(both.master, both.served)
    if found is None:
        state.misses[number] = Misses(values=both.master.numel())
        return
    if scheme is None:
        state.first, state.misses[number], state.scheme_of[number] = found, found.misses, found.scheme
    elif found.misses < state.misses[number]:
        state.misses[number], state.scheme_of[number] = found.misses, found.scheme
        _take_back(found, number, state, readers)


def _look_above(number: int, both: Both, state: Progressing) -> None:
    """Notes a global scale that is another one than that of the scheme, if nothing else differs."""
    scheme, misses = state.scheme_of.get(number), state.misses.get(number)
    if scheme is None or misses is None or not misses.values or misses.codes or misses.scales != 1:
        return
    ratio = global_ratio(both.master, both.served, scheme)
    if ratio != 1:
        state.global_ratios[number] = ratio


def _take_back(found: Found, number: int, state: Progressing, readers: Readers) -> None:
    """Makes a scheme that explains a later matrix that of all, if it explains the earlier ones too."""
    if not found.is_exact:
        return
    earlier = {}
    for other in state.misses:
        if other != number:
            both = readers[other]()
            earlier[other] = count_misses(both.master, both.served, found.scheme)
            if earlier[other].values > state.misses[other].values:
                return
    state.first = found
    state.misses.update(earlier)
    state.scheme_of.update(dict.fromkeys(earlier, found.scheme))


def _conclude(about: Described, state: Progressing, num_matrices: int) -> Identified:
    if state.first is None:
        is_same = len(state.unquantized) == num_matrices
        standing = Standing.UNQUANTIZED if is_same else Standing.UNKNOWN
        explains = 1.0 if is_same else 0.0
        note = about.note or ("" if is_same else "no quantization of its master: they are not alike")
        return Identified(
            _tensor(about, num_matrices, standing, explains=explains, note=note), None, tuple(state.misses)
        )
    used = Counter(scheme.name for scheme in state.scheme_of.values())
    num_unquantized = len(state.unquantized) * (state.num_values // num_matrices)  # no scheme gives them
    main = max(state.scheme_of.values(), key=lambda scheme: used[scheme.name])
    unexplained = tuple(n for n, misses in state.misses.items() if misses.values or state.scheme_of.get(n) != main)
    total = Misses(*(sum(part) for part in zip(*state.misses.values(), strict=True)))
    tensor = _tensor(
        about,
        num_matrices,
        _standing(state, unexplained),
        explains=1.0 - (total.values + num_unquantized) / state.num_values,
        note=_note(about, state, used, total),
    ).model_copy(
        update={
            "scheme": main.name,
            "rule": describe_rule(main),
            "differing": DifferingCounts(scales=total.scales, codes=total.codes, values=total.values),
            "alternatives": state.first.alternatives,
        }
    )
    return Identified(tensor, main, (*unexplained, *state.unquantized))


def _standing(state: Progressing, unexplained: tuple[int, ...]) -> Standing:
    if not unexplained and not state.unquantized:
        return Standing.EXPLAINED
    return Standing.PARTLY if len(unexplained) < len(state.misses) else Standing.UNKNOWN


def _note(about: Described, state: Progressing, used: Counter[str], total: Misses) -> str:
    words = [about.note] if about.note else []
    if len(used) > 1:
        words.append("matrices by scheme: " + ", ".join(f"{count} {name}" for name, count in used.items()))
    if state.unquantized:
        words.append(f"{len(state.unquantized)} matrices are served unquantized, the first {state.unquantized[0]}")
    if state.global_ratios:
        words.append(_note_global(state))
    if total.values == 0 and total.codes:
        words.append(f"{total.codes:,} codes and {total.scales:,} scales are other encodings of equal values")
    return "; ".join(words)


def _note_global(state: Progressing) -> str:
    number, ratio = next(iter(state.global_ratios.items()))
    count = len(state.global_ratios)
    matrices = "1 matrix" if count == 1 else f"{count} matrices"
    is_alone = len(state.misses) + len(state.unquantized) == 1
    where = "" if is_alone else f" of {matrices}, the first {number},"
    return f"the global scale{where} is {ratio:.6g} times that of {state.scheme_of[number].name}"


def _tensor(
    about: Described, num_matrices: int, standing: Standing, *, explains: float | None, note: str
) -> TensorIdentification:
    return TensorIdentification(
        name=about.name,
        standing=standing,
        shape=about.shape,
        num_matrices=num_matrices,
        storage=about.storage,
        explains=explains,
        note=note,
    )
