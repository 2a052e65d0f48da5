"""The rule that separates two sides, after their differences are known: by matching, by statement, or by what is known.

Where both sides can be matched with schemes, their fields are compared. A side that is not read and matches no scheme
is described by the departures that its adapter states, which are tested there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from quantaudit.core.certificate import BlockKind, Counterexample, Level, RuleDifference
from quantaudit.identity.findings import Findings, special_rules
from quantaudit.identity.rule import can_be_matched, explain, find_scheme, see
from quantaudit.identity.sides import Side

STATED, DOES_NOT = "stated departure", "does not"


class Separation(NamedTuple):
    """The scheme that each side matches (empty for none), the fields that separate them, and sentences."""

    matches: tuple[str, str]
    rules: tuple[RuleDifference, ...] = ()
    notes: tuple[str, ...] = ()


def find_rules(sides: tuple[Side, Side], out_dtype: torch.dtype, findings: Findings) -> Separation:
    """Finds what separates two sides.

    Args:
        sides: Both sides.
        out_dtype: Of decoded values where a side leaves it open.
        findings: What comparing them found.
    """
    a, b = (side.scheme for side in sides)
    known = (a.name if sides[0].is_scheme else "", b.name if sides[1].is_scheme else "")
    if findings.first is None or findings.level is Level.DECODE_ONLY:
        return Separation(known, special_rules(findings.sections))  # none, or what one side refuses
    if findings.level is Level.CONDITIONAL or not (can_be_matched(a) and can_be_matched(b)):
        # Of a side that is not read only the groups are known; its other fields are a claim.
        stated = explain(a, b, None)
        are_read = all(side.is_scheme for side in sides)
        rules = tuple(rule for rule in stated if are_read or rule.field == "granularity")
        return Separation(known, findings.rules + rules or _otherwise(sides, findings))
    return _match(sides, out_dtype, findings)


def _match(sides: tuple[Side, Side], out_dtype: torch.dtype, findings: Findings) -> Separation:
    ranks = _rank_of(findings.tallies.of(BlockKind.ORDINARY).first)
    seen = [see(side, out_dtype, ranks) for side in sides]
    found = [find_scheme(side, s) for side, s in zip(sides, seen, strict=True)]
    names = ("" if found[0] is None else found[0].name, "" if found[1] is None else found[1].name)
    if found[0] is None or found[1] is None:
        unknown = " and ".join(side.name for side, scheme in zip(sides, found, strict=True) if scheme is None)
        note = f"No scheme within two changes gives what {unknown} gives."
        return Separation(names, _otherwise(sides, findings), (note,))
    # Two that match one scheme and differ all the same part where matching does not look.
    return Separation(names, explain(found[0], found[1], seen[1]) or _otherwise(sides, findings))


def _otherwise(sides: tuple[Side, Side], findings: Findings) -> tuple[RuleDifference, ...]:
    """Names special blocks where ordinary ones are equal, else the departures that adapters state."""
    if findings.tallies.of(BlockKind.ORDINARY).first is None:
        return special_rules(findings.sections)
    stated = []
    for at, side in enumerate(sides):
        for sentence in side.departs:
            a_value, b_value = (sentence, DOES_NOT) if at == 0 else (DOES_NOT, sentence)
            stated.append(RuleDifference(field=STATED, a_value=a_value, b_value=b_value))
    return tuple(stated)


def _rank_of(first: Counterexample | None) -> tuple[int, ...]:
    """Returns the bf16 rank of the statistic of a counterexample, if there is one."""
    if first is None:
        return ()
    bits = int(first.statistic.bits, 16)
    return ((bits if len(first.statistic.bits) == len("0x0000") else bits >> 16) & 0x7FFF,)
