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
from quantaudit.core.identification import CodeEvidence, Standing, TensorIdentification, describe_rule
from quantaudit.core.scheme import Scheme
from quantaudit.identity.histogram import are_powers_of_two, judge_codes, read_codes, weigh
from quantaudit.identity.search import Found, count_misses, is_related, is_unquantized, search
from quantaudit.identity.search_sample import Misses, Served


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
        first: The search that found the scheme.
    """

    misses: dict[int, Misses] = field(default_factory=dict)
    scheme_of: dict[int, Scheme] = field(default_factory=dict)
    num_values: int = 0
    unquantized: list[int] = field(default_factory=list)
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
        _look(number, read(), state, readers)
    return _conclude(about, state, len(readers))


def read_alone(about: Described, matrices: Mapping[int, Callable[[], Served]]) -> TensorIdentification:
    """Says what the codes of a tensor prove without a master.

    Args:
        about: Which tensor it is.
        matrices: Reads a quantized matrix, by expert.
    """
    histogram: Counter[str] = Counter()
    facts: dict[str, None] = {}
    for read in matrices.values():
        served = read()
        evidence = read_codes(served)
        histogram.update(evidence.histogram)
        facts.update(dict.fromkeys(evidence.facts if len(matrices) == 1 else ()))
    assert served.element is not None
    counts = {int(code): count for code, count in sorted(histogram.items(), key=lambda item: int(item[0]))}
    rules = weigh(counts, served.element, are_powers_of_two(served)) if evidence.rules else ()
    whole = CodeEvidence(
        num_groups=sum(counts.values()),
        histogram={str(code): count for code, count in counts.items()},
        rules=rules,
        facts=tuple(facts),
    )
    standing, rule, sentence = judge_codes(whole)
    return TensorIdentification(
        name=about.name,
        standing=standing,
        shape=about.shape,
        num_matrices=len(matrices),
        storage=about.storage,
        scheme=f"{served.element.name} with scale rule {rule}" if rule else "",
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
    if total.values == 0 and total.codes:
        words.append(f"{total.codes:,} codes and {total.scales:,} scales are other encodings of equal values")
    return "; ".join(words)


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
