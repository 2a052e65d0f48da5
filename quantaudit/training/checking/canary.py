"""The canary: a fixed batch whose bits say whether the engine computes as it declares.

The trainer's process runs the same weights under the declared execution. Equal bits mean that weights, execution and
memories are what they are said to be, at least as far as this batch can tell. If bits differ although the weights do
not, one execution after another is replayed; the one that gives the engine's bits is what it really does.

A hypothesis is an execution, and which memories of earlier weights are still used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.step_log import UNEXPLAINED, CanaryCheck, Finding, FindingKind
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush

_LONGEST_AGE = 3
# What engines switch together; pairs of all candidates would take minutes.
_OFTEN_PAIRED = frozenset({"activation-format", "router-precision", "state-precision", "latent-precision"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One way in which the engine may have computed the canary.

    Attributes:
        execution: How it computes.
        flush: Which memories it drops at a sync.
        age: Syncs since the memories that it keeps were made; 0 where it keeps none.
    """

    execution: EngineExecution
    flush: Flush = Flush()
    age: int = 0


Replay: TypeAlias = Callable[[Hypothesis], "Tensor | None"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CanaryRun:
    """What the engine gave, and how to replay it.

    Attributes:
        bits: Log-probabilities of the canary, fp32.
        declared: The execution that the engine declares.
        replay: Runs a hypothesis on the trainer's weights; `None` where what it needs was not kept.
        activation_schemes: Names of activation schemes that an engine may have taken by mistake.
    """

    bits: Tensor
    declared: EngineExecution
    replay: Replay
    activation_schemes: tuple[str, ...] = ("mxfp8-e4m3-even", "mxfp8-e4m3-rceil", "mxfp8-e4m3-floor", "mxfp8-e5m2-even")


class _Change(NamedTuple):
    """One departure from the declaration."""

    name: str
    code: str
    field: str
    train: str
    serve: str
    sentence: str
    hypothesis: Hypothesis


class CanaryOutcome(NamedTuple):
    """What a canary showed."""

    check: CanaryCheck
    finding: Finding | None


def check_canary(run: CanaryRun, step: int, *, diagnose: bool = True) -> CanaryOutcome:
    """Compares the engine's bits with the replay of what it declares, and looks for what gives them if they differ.

    Args:
        run: What the engine gave.
        step: The step.
        diagnose: Whether other executions are tried; where weights differ, none of them says anything.
    """
    wanted = run.replay(Hypothesis(execution=run.declared))
    assert wanted is not None
    differing = _num_differing(run.bits, wanted)
    check = CanaryCheck(
        num_values=run.bits.numel(),
        num_differing=differing,
        max_difference=_distance(run.bits, wanted),
        declared=run.declared.in_words(),
    )
    if not differing or not diagnose:
        return CanaryOutcome(check, None)
    found = next((changes for changes in _candidates(run) if _gives(run, changes)), None)
    if found is None:
        return CanaryOutcome(check, _unexplained(step, check))
    words = ", ".join(f"{change.field} = {change.serve}" for change in found)
    return CanaryOutcome(check.model_copy(update={"reproduced_by": words}), _named(step, found, check))


def _gives(run: CanaryRun, changes: tuple[_Change, ...]) -> bool:
    replayed = run.replay(_combined(run.declared, changes))
    return replayed is not None and _num_differing(run.bits, replayed) == 0


def _combined(declared: EngineExecution, changes: tuple[_Change, ...]) -> Hypothesis:
    """Returns the hypothesis that all changes happened together."""
    base = Hypothesis(execution=declared)
    fields: dict[str, object] = {}
    flush: dict[str, bool] = {}
    age = 0
    for change in changes:
        mine = change.hypothesis
        fields |= {k: v for k, v in mine.execution if v != getattr(declared, k)}
        flush |= {k: v for k, v in mine.flush if not v}
        age = max(age, mine.age)
    return replace(
        base, execution=declared.model_copy(update=fields), flush=base.flush.model_copy(update=flush), age=age
    )


def _candidates(run: CanaryRun) -> Iterator[tuple[_Change, ...]]:
    single = list(_changes(run))
    yield from ((change,) for change in single)
    paired = [change for change in single if change.name in _OFTEN_PAIRED]
    for first, second in combinations(paired, 2):
        if first.field != second.field:
            yield first, second


def _changes(run: CanaryRun) -> Iterator[_Change]:
    yield from _activation_changes(run)
    declared = run.declared
    precisions = {
        "router": ("router-precision", "K14", "The router is computed in another precision."),
        "state": ("state-precision", "K3", "KDA states are kept in another precision."),
        "latent": ("latent-precision", "K3", "MLA latents are kept in another precision."),
        "dtype": ("compute-dtype", "K3", "The engine computes in another dtype."),
    }
    for field, (name, code, sentence) in precisions.items():
        held = getattr(declared, field)
        for dtype in ComputeDtype:
            if dtype is not held:
                execution = declared.model_copy(update={field: dtype})
                yield _Change(name, code, field, held, dtype, sentence, Hypothesis(execution=execution))
    yield from _memory_changes(declared)
    for batch in (1, 2, 4, 8):
        if batch < declared.max_batch:
            execution = declared.model_copy(update={"max_batch": batch})
            sentence = "Another number of sequences goes through the model together."
            yield _Change(
                "batch-size",
                "K3",
                "max_batch",
                str(declared.max_batch),
                str(batch),
                sentence,
                Hypothesis(execution=execution),
            )


def _activation_changes(run: CanaryRun) -> Iterator[_Change]:
    declared = run.declared
    held = ", ".join(sorted(set(declared.activations.values()))) or "none"
    sentence = "The inputs of the expert GEMMs are quantized otherwise than declared."
    others: list[dict[str, str]] = [{}] if declared.activations else []
    others += [dict.fromkeys(declared.activations, scheme) for scheme in run.activation_schemes]
    for activations in others:
        if activations != declared.activations:
            served = ", ".join(sorted(set(activations.values()))) or "none"
            execution = declared.model_copy(update={"activations": activations})
            yield _Change(
                "activation-format", "K3", "activations", held, served, sentence, Hypothesis(execution=execution)
            )


def _memory_changes(declared: EngineExecution) -> Iterator[_Change]:
    names = tuple(Flush.model_fields)
    sentence = "Memories that earlier weights left are used after a sync."
    kept_sets = [(name,) for name in names] + list(combinations(names, 2)) + [names]
    for age in range(1, _LONGEST_AGE + 1):
        for kept in sorted(kept_sets, key=len, reverse=True):
            flush = Flush(**dict.fromkeys(kept, False))
            served = f"{' and '.join(kept)} of {age} sync{'s' if age > 1 else ''} before"
            hypothesis = Hypothesis(execution=declared, flush=flush, age=age)
            yield _Change("cache-not-flushed", "K9", "flush", "flushed", served, sentence, hypothesis)


def _named(step: int, changes: tuple[_Change, ...], check: CanaryCheck) -> Finding:
    first = changes[0]
    return Finding(
        step=step,
        name="+".join(change.name for change in changes),
        kind=FindingKind.EXECUTION,
        code=first.code,
        num_differing=check.num_differing,
        field=", ".join(change.field for change in changes),
        train=", ".join(change.train for change in changes),
        serve=", ".join(change.serve for change in changes),
        explains=1.0,
        sentence=" ".join(change.sentence for change in changes),
    )


def _unexplained(step: int, check: CanaryCheck) -> Finding:
    return Finding(
        step=step,
        name=UNEXPLAINED,
        kind=FindingKind.EXECUTION,
        num_differing=check.num_differing,
        field="execution",
        train=check.declared,
        serve="something else",
        sentence="The engine's bits are not those of its declared execution, nor of any that was tried.",
    )


def _num_differing(a: Tensor, b: Tensor) -> int:
    """Counts numbers whose bits differ; all of the first where shapes do."""
    if a.shape != b.shape:
        return a.numel()
    return int((a.contiguous().view(torch.int32) != b.contiguous().view(torch.int32)).sum())


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return float("inf") if a.shape != b.shape else 0.0
    apart = (a.double() - b.double()).abs()
    return float(torch.where(a == b, 0.0, apart).max())
