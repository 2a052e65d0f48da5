"""A certificate in at most 25 lines: the conclusion, what was tried, what differs, the first input, and the rule."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TextIO

from quantaudit.core.certificate import (
    BlockSection,
    Certificate,
    CertifiedPair,
    Conclusion,
    Counterexample,
    Differing,
    Level,
    Number,
    Recheck,
)

_WIDTH = 110
_LABEL = 14
_MOST_NOTES = 3

_MEANING = {
    Conclusion.IDENTICAL: "every value is the same",
    Conclusion.EXCEPT_SPECIAL: "every value of ordinary blocks is the same, and some of special blocks are not",
    Conclusion.DIFFERENT: "values differ",
    Conclusion.NOT_PROVED: "what was sampled is the same; that is no proof",
}
_REACH = {
    Level.COMPLETE: "every finite statistic with every value",
    Level.FACTORED: "every scale, then every value under every scale",
    Level.BOUNDARY: "both sides of every step",
    Level.DECODE_ONLY: "every code under every scale",
    Level.CONDITIONAL: "whole matrices, a sample",
}


def print_certificate(certificate: Certificate, stream: TextIO, location: str | None = None) -> None:
    """Prints a certificate.

    Args:
        certificate: What was found.
        stream: Where to.
        location: File it was written to.
    """
    for pair in certificate.pairs:
        stream.writelines(f"{line}\n" for line in describe_pair(pair))
    if location is not None:
        stream.write(f"{_label('written to')}{location}\n")


def print_recheck(again: Recheck, stream: TextIO) -> None:
    """Prints whether a certificate holds, and what changed."""
    for pair in again.certificate.pairs:
        stream.write(f"{pair.a} against {pair.b}: {pair.special_blocks.value}\n")
    stream.write("the certificate holds: everything was found again\n" if again.holds else "")
    stream.writelines(f"changed: {change}\n" for change in again.changes[:12])
    if len(again.changes) > 12:
        stream.write(f"and {len(again.changes) - 12} more changes\n")
    stream.writelines(f"environment: {change}\n" for change in again.environment[:6])


def describe_pair(pair: CertifiedPair) -> Iterator[str]:
    """Yields the lines of one pair."""
    yield f"{pair.a} against {pair.b}, {pair.domain.dtype}: {pair.special_blocks.value}"
    yield f"{_label('')}{_MEANING[pair.special_blocks]}"
    for side in pair.sides:
        version = f" {side.version}" if side.version else ""
        matches = f"; gives what {side.matches} gives" if side.matches and side.matches != side.name else ""
        yield f"{_label(side.origin)}{side.name}{version}, {side.path}{matches}"
    yield f"{_label('tried')}{pair.num_pairs:,} inputs: {_REACH[pair.level]} ({pair.level.value})"
    yield f"{_label('ordinary')}{_count(pair.differing, pair.zero_signs)}"
    for section in pair.sections:
        if _is_any(section):
            counted = _count(section.differing, section.zero_signs)
            yield f"{_label(section.kind.value)}{counted}, of {section.num_pairs:,} inputs"
    quiet = [section.kind.value for section in pair.sections if not _is_any(section)]
    if quiet:
        yield f"{_label('special')}no difference where blocks are {', '.join(quiet)}"
    if pair.counterexample is not None:
        yield from _describe_example(pair.counterexample)
    for rule in pair.rules[:_MOST_NOTES]:
        yield f"{_label('rule')}{rule.field}: {rule.a_value} | {rule.b_value}"
    failed = [assumption for assumption in pair.assumptions if not assumption.holds]
    if pair.assumptions:
        held = len(pair.assumptions) - len(failed)
        yield f"{_label('premises')}{held} of {len(pair.assumptions)} hold on structured inputs"
    for assumption in failed[:_MOST_NOTES]:
        yield from _wrap("fails", f"{assumption.side}: {assumption.statement} {assumption.found}")
    for note in pair.notes[:_MOST_NOTES]:
        yield from _wrap("note", note)


def _describe_example(example: Counterexample) -> Iterator[str]:
    above = "" if example.matrix_absmax is None else f", in a matrix of {_number(example.matrix_absmax)}"
    yield f"{_label('first')}{_number(example.value)} in a group of absmax {_number(example.statistic)}{above}"
    for side, scale, code, value in (
        ("a", example.a_scale, example.a_code, example.a_value),
        ("b", example.b_scale, example.b_code, example.b_value),
    ):
        words = [f"becomes {_number(value)}"]
        words += [] if code is None else [f"code {code}"]
        words += [] if scale is None else [f"scale {_number(scale)}"]
        yield f"{_label('  in ' + side)}{', '.join(words)}"


def _count(differing: Differing, zero_signs: int) -> str:
    if not (differing.values or differing.codes or differing.scales or zero_signs):
        return "no difference" + ("" if differing.codes is not None else " in values; codes and scales are not shown")
    words = [f"{differing.values:,} values"]
    words += [] if differing.codes is None else [f"{differing.codes:,} codes"]
    words += [] if differing.scales is None else [f"{differing.scales:,} scales"]
    words += [] if zero_signs == 0 else [f"{zero_signs:,} signs of zero"]
    return ", ".join(words) + " differ"


def _is_any(section: BlockSection) -> bool:
    differing = section.differing
    return bool(differing.values or differing.codes or differing.scales or section.zero_signs)


def _number(number: Number) -> str:
    return f"{number.value:.9g} ({number.bits})"


def _label(word: str) -> str:
    return f"  {word:<{_LABEL}}"


def _wrap(word: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, _WIDTH - _LABEL)
    yield from (f"{_label(word if index == 0 else '')}{line}" for index, line in enumerate(lines))
