"""`quantaudit identify`: which scheme and rules made this file?"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantaudit.cli.shares import format_percent

if TYPE_CHECKING:
    from quantaudit.core.identification import Identification, TensorIdentification

_SHOWN_GROUPS = 4
_SHOWN_ALTERNATIVES = 2
_SHOWN_RULES = 4
_SHOWN_NAMES = 2
_LEAST_WIDTH = 40

Served = Annotated[Path, typer.Argument(metavar="SERVED", help="Checkpoint folder, .safetensors or .gguf file.")]
Master = Annotated[
    Path | None, typer.Option("--master", metavar="HI", help="The unquantized weights that it was made from.")
]
Earlier = Annotated[
    list[Path] | None,
    typer.Option("--earlier", metavar="PATH", help="Masters before the last update, newest first; may be repeated."),
]
Match = Annotated[
    str | None, typer.Option("--match", metavar="PATTERN", help="Only these logical names, such as '*experts*'.")
]
Latent = Annotated[bool, typer.Option("--latent", help="Name the mismatches that would change no value here, too.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads; the free cores if left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else.")]


def identify(
    served: Served,
    master: Master = None,
    earlier: Earlier = None,
    match: Match = None,
    latent: Latent = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Find the scheme and the rules that made a served checkpoint, or the fault that separates it from its masters.

    Exit 0 if every quantized tensor is explained; 3 if one is not, or only by a mismatch; 4 if nothing could be
    checked, or without masters the codes make a rule likely and prove none.
    """
    from quantaudit.api import identify as identify_checkpoint
    from quantaudit.cli.progress import StageProgress

    with StageProgress() as progress:
        found = identify_checkpoint(
            served,
            master=master,
            earlier=tuple(earlier or ()),
            match=match,
            latent=latent,
            threads=threads,
            progress=progress,
        )
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        sys.stdout.writelines(f"{line}\n" for line in _laid_out(describe_identification(found)))
    return int(found.exit_code)


def describe_identification(found: Identification) -> Iterator[str]:
    """Yields the answer, and tensors of one finding together, the worst first: 25 lines at most."""
    yield f"{_answer(found)}: {found.served}" + (f", from {found.master}" if found.master else ", without masters")
    groups: dict[tuple[str, ...], list[TensorIdentification]] = {}
    for tensor in found.tensors:
        groups.setdefault(_finding(tensor), []).append(tensor)
    order = sorted(groups.values(), key=lambda tensors: (_rank(tensors[0]), -len(tensors)))
    for tensors in order[:_SHOWN_GROUPS]:
        yield from _describe(tensors, is_brief=len(order) > 2)
    if len(order) > _SHOWN_GROUPS:
        yield f"and {len(order) - _SHOWN_GROUPS:,} more findings; --json has them all"
    if found.num_unquantized:
        yield f"{_count(found.num_unquantized, 'tensor')} of plain numbers" + (
            " like the masters" if found.master else ""
        )
    yield from (f"note: {note}" for note in found.notes[:2])


def _laid_out(lines: Iterator[str]) -> Iterator[str]:
    """Yields lines that fit a terminal, or the columns that are asked for; in a pipe they stay whole."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        yield from lines
        return
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _answer(found: Identification) -> str:
    from quantaudit.core.verdict import ExitCode

    words = {ExitCode.PASS: "EXPLAINED", ExitCode.REJECTED: "NOT EXPLAINED"}
    return words.get(found.exit_code, "NOT PROVED")


def _rank(tensor: TensorIdentification) -> int:
    from quantaudit.core.identification import Standing

    worst_first = (Standing.UNKNOWN, Standing.PARTLY, Standing.MISMATCH, Standing.NOT_CHECKED, Standing.LIKELY)
    return worst_first.index(tensor.standing) if tensor.standing in worst_first else len(worst_first)


def _finding(tensor: TensorIdentification) -> tuple[str, ...]:
    """Returns what tensors must share to be shown together."""
    fault = tensor.mismatch.mismatch if tensor.mismatch else ""
    note = "" if tensor.evidence or not _has_note(tensor) else tensor.note
    return (tensor.standing, tensor.scheme, fault, tensor.storage, note)


def _describe(tensors: list[TensorIdentification], *, is_brief: bool) -> Iterator[str]:
    first = tensors[0]
    names = ", ".join(tensor.name for tensor in tensors[:_SHOWN_NAMES])
    more = f" and {len(tensors) - _SHOWN_NAMES:,} more" if len(tensors) > _SHOWN_NAMES else ""
    yield f"{first.standing}: {names}{more}"
    if first.scheme:
        share = _least(tensors)
        fault = " and the fault below give" if first.mismatch is not None else " gives"
        given = "" if share is None else f"{fault} {format_percent(share)} of the values"
        yield f"    {first.scheme}{given}"
    if first.mismatch is not None:
        named = first.mismatch
        yield f"    {named.kind} {named.mismatch}: {named.sentence}"
        yield f"    {named.field}: {named.train} in training, {named.serve} in serving; accounts for " + (
            f"{format_percent(named.explains)} of what differs"
        )
        if first.runner_up is not None:
            yield f"    next: {first.runner_up.mismatch}, {format_percent(first.runner_up.explains)}"
    elif first.runner_up is not None:
        nearest = f"{first.runner_up.mismatch}, {format_percent(first.runner_up.explains)} of what differs"
        yield f"    no fault is named; nearest: {nearest}"
    if first.mismatch is None and not is_brief:
        yield from _alternatives(first)
    if first.evidence is not None:
        yield from _evidence(first, is_brief=is_brief)
    if _has_note(first):
        yield f"    {first.note}"
    if first.latent:
        yield f"    latent, would change no value: {', '.join(first.latent)}"


def _has_note(tensor: TensorIdentification) -> bool:
    """Says whether a note is shown: where a mismatch explains everything, it is all there is to say."""
    from quantaudit.core.identification import Standing

    return bool(tensor.note) and (tensor.mismatch is None or tensor.standing is Standing.PARTLY)


def _least(tensors: list[TensorIdentification]) -> float | None:
    """Returns the least share of values that the scheme gives; `None` without masters."""
    shares = [tensor.explains for tensor in tensors if tensor.explains is not None]
    return min(shares) if len(shares) == len(tensors) else None


def _alternatives(tensor: TensorIdentification) -> Iterator[str]:
    from quantaudit.core.identification import Standing

    word = "not told apart from" if tensor.standing is Standing.EXPLAINED else "next"
    for other in tensor.alternatives[:_SHOWN_ALTERNATIVES]:
        yield f"    {word} {other.scheme} ({format_percent(other.explains)} of {other.num_checked:,} values)"


def _evidence(tensor: TensorIdentification, *, is_brief: bool) -> Iterator[str]:
    evidence = tensor.evidence
    assert evidence is not None
    codes = ", ".join(f"{code}: {_share(count / evidence.num_groups)}" for code, count in evidence.histogram.items())
    if len(evidence.histogram) <= _SHOWN_RULES:
        yield f"    largest code of {evidence.num_groups:,} groups: {codes}"
    for rule in evidence.rules[: 1 if is_brief else _SHOWN_RULES]:
        yield f"    {rule.rule}: {rule.why}"
    yield from (f"    {fact}" for fact in evidence.facts)


def _share(fraction: float) -> str:
    """Returns a share of groups with three digits, under the same rule."""
    shown = f"{fraction:.3f}"
    if shown == "1.000" and fraction < 1:
        return "> 0.999"
    return "< 0.001" if shown == "0.000" and fraction > 0 else shown


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
