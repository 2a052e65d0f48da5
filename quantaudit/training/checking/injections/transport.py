"""Mismatches on the way: weights, scales or whole buckets that do not arrive, or arrive a step late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quantaudit.core.step_log import FindingKind
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.checking.loop_mismatches import NOT_SYNCED, PREVIOUS_STEP, SCALES_NOT_REFRESHED
from quantaudit.training.rl.bucket import Bucket, Field, Piece
from quantaudit.training.rl.names import module_of

_ABOVE = frozenset({Field.SCALES, Field.SECOND_SCALES, Field.OFFSET})


def _plant_not_synced(options: Options) -> Points:
    return Points(buckets=_dropping(options, lambda piece: True))


def _plant_scales(options: Options) -> Points:
    return Points(buckets=_dropping(options, lambda piece: piece.field in _ABOVE))


def _dropping(
    options: Options, is_dropped: Callable[[Piece], bool]
) -> Callable[[Moment, Sequence[Bucket]], Sequence[Bucket]]:
    """Returns what drops some pieces of the chosen weights once something has arrived before."""
    chosen: tuple[str, ...] = ()
    seen = False

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        nonlocal chosen, seen
        is_first, seen = not seen, True
        if is_first or not moment.is_active:
            return sent
        modules = {module for bucket in sent for piece in bucket.pieces if (module := module_name(piece))}
        chosen = chosen or options.select(modules, one=True)
        kept = [_without(b, lambda p: module_name(p) in chosen and is_dropped(p)) for b in sent]
        return [bucket for bucket in kept if bucket.pieces]

    return buckets


def module_name(piece: Piece) -> str:
    """Returns the module that a piece belongs to; empty for dense parameters."""
    return module_of(piece.name, piece.part) if piece.part else ""


def _without(bucket: Bucket, is_dropped: Callable[[Piece], bool]) -> Bucket:
    return replace(bucket, pieces=tuple(piece for piece in bucket.pieces if not is_dropped(piece)))


def _plant_bucket(options: Options) -> Points:
    number = options.count("number", 1) - 1 if "number" in options.request.options else -1
    seen = False

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        nonlocal number, seen
        is_first, seen = not seen, True
        if is_first or not moment.is_active:
            return sent
        if number < 0:
            number = options.draw([b.number for b in sent if any(module_name(p) for p in b.pieces)])
        if all(bucket.number != number for bucket in sent):
            raise options.wrong("number", f"a bucket from 1 to {len(sent)}")
        return [bucket for bucket in sent if bucket.number != number]

    return Points(buckets=buckets)


def _plant_previous(options: Options) -> Points:
    late: list[Sequence[Bucket]] = []
    updates = options.count("updates", 1)

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        late.append([_copied(bucket) for bucket in sent])
        del late[: -updates - 1]
        if not moment.is_active or len(late) <= updates:
            return sent
        # The engine says that it serves the new version all the same.
        return [replace(bucket, version=sent[0].version) for bucket in late[0]]

    return Points(buckets=buckets)


def _copied(bucket: Bucket) -> Bucket:
    """Returns a bucket that the next update does not change: dense parameters are sent as they lie in the trainer."""
    return replace(bucket, pieces=tuple(replace(piece, tensor=piece.tensor.clone()) for piece in bucket.pieces))


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
