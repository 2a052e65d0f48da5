"""`quantaudit compare`: are two checkpoints equal, tensor by tensor?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantaudit.cli.shares import format_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantaudit.core.comparison import Comparison, Diagnosis, FirstDifference, SideInfo, TensorComparison

_SHOWN_TENSORS = 4
_SHOWN_NAMES = 2
_SHOWN_ULPS = 99
_SHOWN_DIAGNOSES = 2
_SIDE = "Checkpoint folder, .safetensors or .gguf file, or manifest (.json)."


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=_SIDE)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same; of another layout if need be.")],
    by_bytes: Annotated[
        bool, typer.Option("--bytes", help="Another encoding of equal values is a difference too.")
    ] = False,
    match: Annotated[
        str | None, typer.Option("--match", metavar="PATTERN", help="Only these logical names, such as '*experts*'.")
    ] = None,
    master: Annotated[
        Path | None,
        typer.Option("--master", metavar="HI", help="Unquantized weights of both: names the rules that differ."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads; the free cores if left out.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON on stdout, and nothing else.")
    ] = False,
) -> int:
    """Compare two checkpoints tensor by tensor: values first, across layouts, with the first difference in bits.

    Exit 0 if every value is equal; 3 if anything differs or is on one side only; 4 if something could not be checked.
    """
    from quantaudit.api import compare as compare_checkpoints
    from quantaudit.cli.progress import StageProgress

    with StageProgress() as progress:
        found = compare_checkpoints(
            a, b, by_bytes=by_bytes, match=match, master=master, threads=threads, progress=progress
        )
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        sys.stdout.write("\n".join(describe_comparison(found)) + "\n")
    return int(found.exit_code)


def describe_comparison(comparison: Comparison) -> Iterator[str]:
    """Yields the answer, the classes, and the worst tensors with their first difference: 25 lines at most."""
    yield f"{_answer(comparison)}: {comparison.a.path} against {comparison.b.path}"
    yield f"  a: {_side(comparison.a)}"
    yield f"  b: {_side(comparison.b)}"
    for found, count in comparison.counts.items():
        yield f"  {count:>6,}  {found}"
    for names, side in ((comparison.only_a, "a"), (comparison.only_b, "b")):
        if names:
            more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
            yield f"only in {side}: {', '.join(names[:_SHOWN_NAMES])}{more}"
    for diagnosis in comparison.diagnosis[:_SHOWN_DIAGNOSES]:
        yield from _explanation(diagnosis)
    yield from _worst(comparison)
    yield from (f"note: {note}" for note in comparison.notes)


def _explanation(diagnosis: Diagnosis) -> Iterator[str]:
    tensors = f"{len(diagnosis.tensors):,} tensor{'' if len(diagnosis.tensors) == 1 else 's'}"
    if not diagnosis.field:
        share = format_percent(diagnosis.explains)
        yield f"explained: {diagnosis.mismatch} gives {share} of the values of {tensors} from their unquantized side"
        return
    share = (
        f"accounts for {format_percent(diagnosis.explains)} of what differs" if diagnosis.explains else "by codes alone"
    )
    yield f"explained: {diagnosis.kind} {diagnosis.mismatch}, {share} in {tensors}"
    yield f"    {diagnosis.field}: {diagnosis.train} in a, {diagnosis.serve} in b"


def _answer(comparison: Comparison) -> str:
    from quantaudit.core.comparison import Mode
    from quantaudit.core.verdict import ExitCode

    if comparison.exit_code is ExitCode.INCONCLUSIVE:
        return "NOT CHECKED"
    if not comparison.identical:
        return "DIFFERENT"
    return "IDENTICAL IN BYTES" if comparison.mode is Mode.BYTES else "IDENTICAL IN VALUE"


def _side(side: SideInfo) -> str:
    size = f", {side.num_bytes:,} bytes" if side.num_bytes else ""
    return f"{side.kind}, {side.num_tensors:,} tensors{size}"


def _worst(comparison: Comparison) -> Iterator[str]:
    from quantaudit.core.comparison import is_equal

    bad = [
        tensor
        for tensor in comparison.tensors
        if not is_equal(tensor.tensor_class, comparison.mode) and tensor.a_encoding and tensor.b_encoding
    ]
    bad.sort(key=lambda tensor: -tensor.tensor_class.rank)
    for tensor in bad[:_SHOWN_TENSORS]:
        yield f"{tensor.name}: {tensor.tensor_class}{_extent(tensor)}"
        if tensor.first is not None:
            yield f"    first {_place(tensor.first)}"
    if len(bad) > _SHOWN_TENSORS:
        yield f"and {len(bad) - _SHOWN_TENSORS:,} more tensors; --json has them all"


def _extent(tensor: TensorComparison) -> str:
    words = []
    if tensor.num_matrices > 1:
        words.append(f"{tensor.num_different:,} of {tensor.num_matrices:,} matrices")
    counts = tensor.differing.model_dump()
    words += [f"{count:,} {part}" for part, count in counts.items() if count]
    if tensor.max_ulps and tensor.max_ulps <= _SHOWN_ULPS:
        words.append(f"at most {tensor.max_ulps} ulp apart")
    if tensor.note:
        words.append(tensor.note)
    return f" ({'; '.join(words)})" if words else ""


def _place(first: FirstDifference) -> str:
    where = "" if first.expert is None else f"expert {first.expert}, "
    group = "" if first.group is None else f", group {first.group}"
    text = f"{where}at {list(first.coordinate)}{group}: {first.a.value:.9g} ({first.a.bits}) against "
    text += f"{first.b.value:.9g} ({first.b.bits})"
    if first.a_code is not None and first.a_code != first.b_code:
        text += f"; codes {first.a_code} and {first.b_code}"
    if first.a_scale is not None and first.b_scale is not None and first.a_scale != first.b_scale:
        text += f"; scales {first.a_scale.value:.9g} and {first.b_scale.value:.9g}"
    return text
