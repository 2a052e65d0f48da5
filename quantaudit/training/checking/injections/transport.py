"""Mismatches on the way: weights, scales or whole buckets that do not arrive, or arrive a step late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from quantaudit.core.step_log import FindingKind
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.checking.loop_mismatches import NOT_SYNCED, PREVIOUS_STEP, SCALES_NOT_REFRESHED
from quantaudit.training.rl.bucket import Bucket, Field, Piece
from quantaudit.training.rl.names import module_of
from quantaudit.training.rl.wire import Message, read_bucket, write_bucket
from quantaudit.training.run_state import Note

_ABOVE = frozenset({Field.SCALES, Field.SECOND_SCALES, Field.OFFSET})


def _plant_not_synced(options: Options) -> Points:
    return Points(buckets=_dropping(options, lambda piece: True))


def _plant_scales(options: Options) -> Points:
    return Points(buckets=_dropping(options, lambda piece: piece.field in _ABOVE))


def _dropping(
    options: Options, is_dropped: Callable[[Piece], bool]
) -> Callable[[Moment, Sequence[Bucket]], Sequence[Bucket]]:
    """Returns what drops some pieces of the chosen weights once something has arrived before."""

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        if options.kept.is_first() or not moment.is_active:
            return sent
        modules = {module for bucket in sent for piece in bucket.pieces if (module := module_name(piece))}
        chosen = options.kept.choose("modules", lambda: options.select(modules, one=True))
        kept = [_without(b, lambda p: module_name(p) in chosen and is_dropped(p)) for b in sent]
        return [bucket for bucket in kept if bucket.pieces]

    return buckets


def module_name(piece: Piece) -> str:
    """Returns the module that a piece belongs to; empty for dense parameters."""
    return module_of(piece.name, piece.part) if piece.part else ""


def _without(bucket: Bucket, is_dropped: Callable[[Piece], bool]) -> Bucket:
    return replace(bucket, pieces=tuple(piece for piece in bucket.pieces if not is_dropped(piece)))


def _plant_bucket(options: Options) -> Points:
    given = options.count("number", 1) - 1 if "number" in options.request.options else -1

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        if options.kept.is_first() or not moment.is_active:
            return sent
        number = given
        if number < 0:
            with_experts = [b.number for b in sent if any(module_name(p) for p in b.pieces)]
            (number,) = options.kept.draw("number", lambda: [options.draw(with_experts)])
        if all(bucket.number != number for bucket in sent):
            raise options.wrong("number", f"a bucket from 1 to {len(sent)}")
        return [bucket for bucket in sent if bucket.number != number]

    return Points(buckets=buckets)


def _plant_previous(options: Options) -> Points:
    updates = options.count("updates", 1)

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        options.kept.push(_write_sync(sent), updates + 1)
        if not moment.is_active or len(options.kept.late) <= updates:
            return sent
        # The engine says that it serves the new version all the same.
        return _read_sync(options.kept.late[-1], sent[0].version)

    return Points(buckets=buckets)


def _write_sync(sent: Sequence[Bucket]) -> Note:
    """Returns buckets that the next update does not change: dense parameters are sent as they lie in the trainer."""
    pieces = tuple(replace(piece, tensor=piece.tensor.clone()) for bucket in sent for piece in bucket.pieces)
    head, tensors = write_bucket(Bucket(number=0, version=sent[0].version, pieces=pieces))
    return Note({**head, "sizes": [len(bucket.pieces) for bucket in sent]}, tensors)


def _read_sync(note: Note, version: int) -> list[Bucket]:
    """Returns the buckets of a sync, under another version."""
    pieces = iter(read_bucket(Message(dict(note.head), dict(note.tensors))).pieces)
    sizes = note.head["sizes"]
    assert isinstance(sizes, list)
    return [
        Bucket(number=number, version=version, pieces=tuple(islice(pieces, int(str(size)))))
        for number, size in enumerate(sizes)
    ]


_TENSOR = {"tensor": "pattern over module names (default: one weight)"}
PLANS = (
    Plan(
        about=InjectionAbout(
            name="tensor-not-synced",
            kind=FindingKind.TRANSPORT,
            sentence=NOT_SYNCED.sentence,
            found_as=("tensor-not-synced",),
            options=_TENSOR,
        ),
        plant=_plant_not_synced,
    ),
    Plan(
        about=InjectionAbout(
            name="scales-not-refreshed",
            kind=FindingKind.TRANSPORT,
            sentence=SCALES_NOT_REFRESHED.sentence,
            found_as=("scales-not-refreshed",),
            options=_TENSOR,
        ),
        plant=_plant_scales,
    ),
    Plan(
        about=InjectionAbout(
            name="bucket-lost",
            kind=FindingKind.TRANSPORT,
            sentence="A bucket of the sync does not arrive.",
            found_as=("tensor-not-synced", "scales-not-refreshed", "previous-step"),
            options={"number": "which one, from 1 (default: one that holds experts)"},
        ),
        plant=_plant_bucket,
    ),
    Plan(
        about=InjectionAbout(
            name="previous-step",
            kind=FindingKind.TRANSPORT,
            sentence=PREVIOUS_STEP.sentence,
            found_as=("previous-step",),
            options={"updates": "how many updates late (default: 1)"},
        ),
        plant=_plant_previous,
    ),
)
