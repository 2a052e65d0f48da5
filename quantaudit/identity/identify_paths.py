"""`identify`: from a served checkpoint, and its masters if they are there, to the scheme and the faults that made it.

Every tensor is identified by itself. Where that leaves something unexplained, all projections of the layer go through
the structural mismatches together: a swap of gate and up is not seen in either alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.identification import Identification, Standing, TensorIdentification
from quantaudit.core.scheme import Scheme
from quantaudit.identity.diagnose import Diagnosed
from quantaudit.identity.identify_layer import Sides, apply_diagnosis, diagnose_layer, name_latent
from quantaudit.identity.identify_tensor import Both, Described, Identified, identify_tensor, read_alone
from quantaudit.identity.layouts.logical import LogicalTensor, MatrixSource, Side, keep_matching
from quantaudit.identity.layouts.opening import open_side
from quantaudit.identity.mismatches.protocol import Projection
from quantaudit.identity.search_sample import Served, read_served
from quantaudit.identity.threads import use_threads

Progress = Callable[[str, int, int], None]

_EXPERTS = re.compile(r"^(.*\.experts)\.(gate|up|down)$")
_NEARLY_ALL = 0.9
_MORE_THAN_HALF = 0.5
_FAULTY = (Standing.PARTLY, Standing.UNKNOWN)


def identify(
    served: str | Path,
    *,
    master: str | Path | None = None,
    earlier: Sequence[str | Path] = (),
    match: str | None = None,
    latent: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Identification:
    """Finds which scheme and rules made a served checkpoint.

    Args:
        served: Checkpoint folder, `.safetensors` or `.gguf` file.
        master: The unquantized weights that it was made from; without them only its codes can speak.
        earlier: Masters before the last update, the newest first, for weights that are stale.
        match: Shell-style pattern of logical names, such as "*experts*"; all tensors when `None`.
        latent: Whether mismatches that would change no value of a layer are named too.
        threads: CPU threads; the free cores when `None`.
        progress: Told (stage, done, total).

    Returns:
        The scheme of every tensor, its rules, what it explains, and what else would.

    Raises:
        InputError: If a path is wrong or a file is damaged.
        NotMeasuredError: If nothing is quantized, or no tensor is on both sides.
    """
    use_threads(threads)
    side, tell = keep_matching(open_side(Path(served)), match), progress or _silent
    if master is None:
        if earlier or latent:
            raise InputError(
                f"{'earlier masters' if earlier else 'latent mismatches'} without a master",
                expected="the masters that it was made from",
                fix="add --master HI",
            )
        return _identify_alone(side, tell)
    high = open_side(Path(master))
    past = [open_side(Path(path)) for path in earlier]
    return _identify_pair(side, high, past, wants_latent=latent, progress=tell)


def _identify_alone(side: Side, progress: Progress) -> Identification:
    quantized = {name: tensor for name, tensor in side.tensors.items() if _is_quantized(tensor)}
    if not quantized:
        raise NotMeasuredError(
            f"{side.path} holds plain numbers only; give the masters they were made from: --master HI"
        )
    found = []
    for done, (name, tensor) in enumerate(quantized.items()):
        progress("identify", done, len(quantized))
        found.append(_identify_codes(name, tensor))
    progress("identify", len(quantized), len(quantized))
    return Identification(
        served=side.path,
        tensors=tuple(found),
        num_unquantized=len(side.tensors) - len(quantized),
        notes=("no master was given: the codes of group maxima tell the scale rule at most",),
    )


def _identify_codes(name: str, tensor: LogicalTensor) -> TensorIdentification:
    """Says what codes prove, and doubts experts that are served unquantized beside quantized ones."""
    sources = {n: source for n, source in tensor.matrices.items() if _has_codes(source)}
    found = read_alone(_describe(name, tensor), {n: partial(_read_served, one) for n, one in sources.items()})
    others = [n for n in tensor.matrices if n not in sources]
    if not others:
        return found
    are = "1 of its experts is" if len(others) == 1 else f"{len(others)} of its experts are"
    note = f"{are} served without codes, the first {others[0]}"
    update = {"standing": Standing.UNKNOWN, "num_matrices": len(tensor.matrices), "note": note}
    return found.model_copy(update=update)


def _identify_pair(
    side: Side, high: Side, past: list[Side], *, wants_latent: bool, progress: Progress
) -> Identification:
    shared = [name for name in side.tensors if name in high.tensors]
    if not shared:
        raise NotMeasuredError(
            f"no tensor of {side.path} has a master in {high.path}: "
            f"names are like {next(iter(side.tensors))!r} and {next(iter(high.tensors))!r}"
        )
    found: dict[str, Identified] = {}
    for done, name in enumerate(shared):
        progress("identify", done, len(shared))
        found[name] = _identify_one(name, side.tensors[name], high.tensors[name])
    progress("identify", len(shared), len(shared))
    _mark_skipped(found)
    sides = {name: _sides(name, side, high, past) for name in shared}
    tensors = _diagnose_all(found, sides, wants_latent=wants_latent, progress=progress)
    for name, tensor in tensors.items():
        tensors[name] = _mark_missing(tensor, side.tensors[name], high.tensors[name])
    if all(tensor.standing is Standing.UNQUANTIZED for tensor in tensors.values()):
        raise NotMeasuredError(f"every tensor of {side.path} that has a master equals it: nothing is quantized")
    kept = [tensor for tensor in tensors.values() if tensor.standing is not Standing.UNQUANTIZED]
    kept += [_without_master(name, side.tensors[name]) for name in side.tensors if name not in high.tensors]
    return Identification(
        served=side.path,
        master=high.path,
        tensors=tuple(sorted(kept, key=lambda tensor: tensor.name)),
        num_unquantized=sum(tensor.standing is Standing.UNQUANTIZED for tensor in tensors.values()),
        notes=tuple(_notes(side, high)),
    )


def _identify_one(name: str, served: LogicalTensor, master: LogicalTensor) -> Identified:
    problem = _problem(served, master)
    about = _describe(name, served)
    if problem:
        tensor = TensorIdentification(
            name=name,
            standing=Standing.NOT_CHECKED,
            shape=about.shape,
            num_matrices=len(served.matrices),
            storage=about.storage,
            note=problem,
        )
        return Identified(tensor, None, ())
    readers = {n: partial(_read_both, served.matrices[n], master.matrices[n]) for n in served.matrices}
    shapes = {(source.shape, master.matrices[n].shape) for n, source in served.matrices.items()}
    if any(a != b for a, b in shapes):  # transposed, perhaps: only a mismatch can explain it
        tensor = TensorIdentification(
            name=name,
            standing=Standing.UNKNOWN,
            shape=about.shape,
            num_matrices=len(readers),
            storage=about.storage,
            explains=0.0,
            note=f"served as {list(about.shape)}, the master is {list(next(iter(master.matrices.values())).shape)}",
        )
        return Identified(tensor, None, tuple(readers))
    return identify_tensor(about, readers)


def _problem(served: LogicalTensor, master: LogicalTensor) -> str:
    """Returns why a pair cannot be looked at; empty if it can."""
    missing = [n for n in served.matrices if n not in master.matrices]
    if missing:
        return f"{len(missing)} of its experts have no master, the first {missing[0]}"
    unreadable = [s.encoding for t in (served, master) for s in t.matrices.values() if not _is_readable(s)]
    if unreadable:
        return f"it is stored as {unreadable[0]}, which holds no numbers that can be read"
    for whose, tensor in (("experts", served), ("masters", master)):
        shapes = {tensor.matrices[n].shape for n in served.matrices}
        if len(shapes) > 1:
            return f"its {whose} have several shapes, {' and '.join(str(list(one)) for one in sorted(shapes)[:2])}"
    for n, source in served.matrices.items():
        if sorted(source.shape) != sorted(master.matrices[n].shape):
            return f"served as {list(source.shape)}, the master is {list(master.matrices[n].shape)}"
    return ""


def _mark_missing(tensor: TensorIdentification, served: LogicalTensor, master: LogicalTensor) -> TensorIdentification:
    """Doubts a tensor of which some experts have a master and are not served, however well the others are explained."""
    missing = sorted(n for n in master.matrices if n not in served.matrices)
    if not missing:
        return tensor
    are = "1 of its experts is" if len(missing) == 1 else f"{len(missing)} of its experts are"
    note = f"{are} not served, the first {missing[0]}"
    is_whole = tensor.standing in (Standing.EXPLAINED, Standing.MISMATCH, Standing.UNQUANTIZED)
    return tensor.model_copy(
        update={
            "standing": Standing.PARTLY if is_whole else tensor.standing,
            "note": f"{tensor.note}; {note}" if tensor.note else note,
        }
    )


def _diagnose_all(
    found: dict[str, Identified], sides: dict[str, Sides], *, wants_latent: bool, progress: Progress
) -> dict[str, TensorIdentification]:
    tensors = {name: identified.tensor for name, identified in found.items()}
    groups = [
        names
        for names in _layers(found)
        if (wants_latent or any(_is_faulty(tensors[n]) for n in names.values())) and _can_diagnose(names, found, sides)
    ]
    for done, names in enumerate(groups):
        progress("diagnose", done, len(groups))
        layer = {projection: sides[name] for projection, name in names.items()}
        schemes = [scheme for name in names.values() if (scheme := _trusted(found[name])) is not None]
        faulty = [name for name in names.values() if _is_faulty(tensors[name])]
        if faulty:
            diagnosed, _ = diagnose_layer(layer, [*schemes, *_schemes_of(found)], _near(found, names.values()))
            if diagnosed is not None and _is_better(diagnosed, [tensors[name] for name in names.values()]):
                tensors.update({name: apply_diagnosis(tensors[name], diagnosed) for name in faulty})
        elif schemes:
            latent = name_latent(layer, schemes[0])
            tensors.update({name: tensors[name].model_copy(update={"latent": latent}) for name in names.values()})
    progress("diagnose", len(groups), len(groups))
    return tensors


def _is_better(diagnosed: Diagnosed, alone: list[TensorIdentification]) -> bool:
    """Says whether a mismatch leaves a smaller share of a layer unexplained than schemes alone do.

    A wrong scheme and a fault that undoes it would explain as much as the right scheme by itself.
    """
    sizes = [math.prod(tensor.shape) * tensor.num_matrices for tensor in alone]
    shares = [0.0 if tensor.explains is None else tensor.explains for tensor in alone]
    left = sum(round((1.0 - share) * size) for share, size in zip(shares, sizes, strict=True))
    return diagnosed.num_left * sum(sizes) < left * diagnosed.num_values


def _trusted(identified: Identified) -> Scheme | None:
    """Returns the scheme of a tensor if it gives nearly all of it: one that gives less is what chance left."""
    explains = identified.tensor.explains
    return identified.scheme if explains is not None and explains >= _NEARLY_ALL else None


def _near(found: dict[str, Identified], names: Iterable[str]) -> list[Scheme]:
    """Returns schemes that give more than half of a tensor: with a fault, perhaps all of it."""
    shown = [found[name] for name in names]
    return [
        one.scheme
        for one in sorted(shown, key=lambda one: one.tensor.explains or 0.0, reverse=True)
        if one.scheme is not None and (one.tensor.explains or 0.0) > _MORE_THAN_HALF
    ]


def _can_diagnose(names: dict[Projection, str], found: dict[str, Identified], sides: dict[str, Sides]) -> bool:
    """Says whether there is anything to guess from: experts, codes, a scheme, earlier masters or another shape."""
    if Projection.WHOLE not in names:
        return True
    name = names[Projection.WHOLE]
    is_turned = found[name].tensor.note.startswith("served as")
    return found[name].scheme is not None or is_turned or bool(sides[name].earlier) or _is_quantized(sides[name].served)


def _layers(found: dict[str, Identified]) -> Iterator[dict[Projection, str]]:
    """Yields tensors that are looked at together: the experts of a layer, and every other tensor alone."""
    layers: dict[str, dict[Projection, str]] = {}
    for name, identified in found.items():
        if identified.tensor.standing is Standing.NOT_CHECKED:
            continue
        parsed = _EXPERTS.fullmatch(name)
        if parsed is None:
            layers[name] = {Projection.WHOLE: name}
        else:
            layers.setdefault(parsed[1], {})[Projection(parsed[2])] = name
    yield from layers.values()


def _mark_skipped(found: dict[str, Identified]) -> None:
    """Doubts experts that are served unquantized where other experts are quantized."""
    experts = {name: one for name, one in found.items() if _EXPERTS.fullmatch(name)}
    if all(one.scheme is None for one in experts.values()):
        return
    for name, one in experts.items():
        if one.tensor.standing is Standing.UNQUANTIZED:
            note = "served unquantized, while other experts are quantized"
            update = {"standing": Standing.UNKNOWN, "explains": 0.0, "note": note}
            found[name] = Identified(one.tensor.model_copy(update=update), None, one.unexplained)


def _schemes_of(found: dict[str, Identified]) -> list[Scheme]:
    """Returns the schemes of explained tensors, for layers that show none themselves."""
    explained = [one for one in found.values() if one.tensor.standing is Standing.EXPLAINED]
    return list({one.scheme.name: one.scheme for one in explained if one.scheme is not None}.values())


def _is_faulty(tensor: TensorIdentification) -> bool:
    return tensor.standing in _FAULTY


def _sides(name: str, side: Side, high: Side, past: list[Side]) -> Sides:
    earlier = tuple(one.tensors[name] for one in past if name in one.tensors)
    return Sides(served=side.tensors[name], master=high.tensors[name], earlier=earlier)


def _without_master(name: str, tensor: LogicalTensor) -> TensorIdentification:
    about = _describe(name, tensor)
    return TensorIdentification(
        name=name,
        standing=Standing.NOT_CHECKED,
        shape=about.shape,
        num_matrices=len(tensor.matrices),
        storage=about.storage,
        note="it has no master",
    )


def _notes(side: Side, high: Side) -> Iterator[str]:
    unused = [name for name in high.tensors if name not in side.tensors]
    if unused:
        yield f"{len(unused)} masters are not served, the first {unused[0]}"
    if any(_is_quantized(tensor) for tensor in high.tensors.values()):
        yield "some masters are quantized themselves: their decoded values were taken, so quantizing twice is not seen"


def _describe(name: str, tensor: LogicalTensor) -> Described:
    shape = next(iter(tensor.matrices.values())).shape
    return Described(name=name, shape=shape, storage=tensor.storage)


def _is_quantized(tensor: LogicalTensor) -> bool:
    return any(_has_codes(source) for source in tensor.matrices.values())


def _has_codes(source: MatrixSource) -> bool:
    return source.encoding is not Encoding.PLAIN and _is_readable(source)


def _is_readable(source: MatrixSource) -> bool:
    return source.encoding not in (Encoding.INTEGERS, Encoding.UNKNOWN)


def _read_served(source: MatrixSource) -> Served:
    return read_served(source.read())


def _read_both(served: MatrixSource, master: MatrixSource) -> Both:
    stored = master.read()
    values = stored.values(slice(0, stored.shape[0]), stored.dtype)  # type: ignore[arg-type]
    return Both(values, _read_served(served))


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
