"""Which mismatch it is, where two neighbouring sides part.

Layer by layer, the recognisers that fit the place are asked first, those that need a loop before the structural ones of
`identity.mismatches`, until one gives every value bit for bit. What explains one layer in full is tried on the others
before anything else. Findings that say the same of several layers become one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.core import step_log
from quantaudit.core.step_log import UNEXPLAINED, FindingKind, Side
from quantaudit.identity.mismatches.protocol import Finding, Projection
from quantaudit.identity.mismatches.registry import MISMATCHES
from quantaudit.identity.mismatches.scoring import num_differing
from quantaudit.training.checking.evidence import Evidence, History, gather_evidence, group_layers
from quantaudit.training.checking.fingerprints import Compared
from quantaudit.training.checking.loop_mismatches import Recogniser, recognisers_for
from quantaudit.training.checking.sides import Past, Shipped, Sides, is_same_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The first value at which two sides part."""

    projection: Projection
    expert: int
    coordinate: tuple[int, ...]


def diagnose_step(step: int, sides: Sides, compared: Compared, history: History) -> tuple[step_log.Finding, ...]:
    """Returns a finding for everything that parts the sides of one step.

    Args:
        step: The step.
        sides: What was compared.
        compared: Where it parts.
        history: Earlier steps.
    """
    found: list[step_log.Finding] = []
    for leg, parted in compared.parted.items():
        is_everything = _changed_since(sides, history) <= set(parted)
        helpful: list[Recogniser] = []
        for layer, names in group_layers(tuple(sides.trainer)).items():
            if not set(parted) & set(names.values()):
                continue
            evidence = gather_evidence(sides, leg, names, history, is_everything=is_everything)
            if evidence.serve.keys() != evidence.train.keys():
                found.append(_missing(step, layer, leg, names, sides))
                continue
            best = _explain(evidence, helpful)
            found.append(_finding(step, evidence, best))
    return _merged(found)


def _explain(evidence: Evidence, helpful: list[Recogniser]) -> Finding | None:
    """Returns the finding that accounts for most; a recogniser that explains all moves to the front of `helpful`."""
    order = [*helpful, *recognisers_for(evidence.leg), *(_structural(m.recognise) for m in MISMATCHES)]
    best: Finding | None = None
    for recognise in order:
        finding = recognise(evidence)
        if finding is not None and (best is None or finding.num_left < best.num_left):
            best = finding
            if finding.num_left == 0:
                helpful[:] = [recognise]
                break
    return best


def _structural(recognise: object) -> Recogniser:
    assert callable(recognise)

    def ask(evidence: Evidence) -> Finding | None:
        found: Finding | None = recognise(evidence.train, evidence.serve)
        return found

    return ask


def _finding(step: int, evidence: Evidence, best: Finding | None) -> step_log.Finding:
    place = _first_difference(evidence)
    touched = [p for p in evidence.names if p in evidence.serve and _differs(evidence, p)]
    first = evidence.names[place.projection] if place is not None else evidence.names[touched[0]]
    common = step_log.Finding(
        step=step,
        name=UNEXPLAINED,
        kind=FindingKind.TRANSPORT
        if evidence.leg[1] is Side.LOADED and evidence.leg[0] is Side.SENT
        else FindingKind.STATE,
        tensor=first,
        num_tensors=len(touched),
        expert=None if place is None else place.expert,
        coordinate=() if place is None else place.coordinate,
        num_differing=num_differing(evidence.train, evidence.serve),
        between=evidence.leg,
        explains=None if best is None else best.explains,
        sentence="No known mismatch accounts for what differs.",
    )
    if best is None or not best.is_convincing:
        near = "" if best is None else f" The nearest, {best.about.name}, accounts for {best.explains:.0%}."
        return common.model_copy(update={"sentence": common.sentence + near})
    return common.model_copy(
        update={
            "name": best.about.name,
            "code": best.about.kind.value,
            "field": best.about.field,
            "train": str(best.train),
            "serve": str(best.serve),
            "sentence": best.about.sentence,
        }
    )


def _missing(
    step: int, layer: str, leg: tuple[Side, Side], names: dict[Projection, str], sides: Sides
) -> step_log.Finding:
    there = sides.served()[leg[1]]
    lost = [name for name in names.values() if name not in there]
    return step_log.Finding(
        step=step,
        name="missing-tensor",
        kind=FindingKind.TRANSPORT,
        code="K10",
        tensor=lost[0],
        num_tensors=len(lost),
        between=leg,
        field="sync.names",
        train="there",
        serve="not there",
        sentence=f"Weights of {layer} are not on the other side under any name.",
    )


def _differs(evidence: Evidence, projection: Projection) -> bool:
    one = {projection: evidence.train[projection]}
    return num_differing(one, {projection: evidence.serve[projection]}) > 0


def _first_difference(evidence: Evidence) -> Place | None:
    for projection in evidence.names:
        if projection not in evidence.serve:
            continue
        a, b = evidence.train[projection].values, evidence.serve[projection].values
        if a.shape != b.shape:
            return Place(projection=projection, expert=0, coordinate=())
        differs = (a.float() != b.float()) & ~(a.isnan() & b.isnan())
        if differs.any():
            return _place(projection, differs)
    return None


def _place(projection: Projection, differs: Tensor) -> Place:
    where = [int(i) for i in torch.unravel_index(differs.flatten().to(torch.uint8).argmax(), differs.shape)]
    return Place(projection=projection, expert=where[0] if len(where) > 2 else 0, coordinate=tuple(where[-2:]))


def _changed_since(sides: Sides, history: History) -> set[str]:
    """Returns the weights whose shipped bytes changed in the last update."""
    served = sides.served()
    now = served.get(Side.SENT, served.get(Side.LOADED))
    if now is None or not history.past:
        return set(sides.trainer)
    return {name for name, shipped in now.items() if _is_new(shipped, history.past[0], name)}


def _is_new(shipped: Shipped, before: Past, name: str) -> bool:
    earlier = before.shipped.get(name)
    return earlier is None or not is_same_storage(shipped, earlier)


def _merged(findings: Iterable[step_log.Finding]) -> tuple[step_log.Finding, ...]:
    """Makes one of the findings that say the same of several layers."""
    merged: dict[tuple[object, ...], step_log.Finding] = {}
    for one in findings:
        key = (one.name, one.between, one.train, one.serve)
        held = merged.get(key)
        if held is None:
            merged[key] = one
            continue
        total = held.num_differing + one.num_differing
        shares = (held.explains, held.num_differing), (one.explains, one.num_differing)
        explained = sum((share or 0.0) * count for share, count in shares)
        merged[key] = held.model_copy(
            update={
                "num_tensors": held.num_tensors + one.num_tensors,
                "num_differing": total,
                "explains": explained / total if total else held.explains,
            }
        )
    return tuple(merged.values())
