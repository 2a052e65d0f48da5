"""Mismatches of the post-load step: layouts not built again, old scales, gate and up in another order, a placement."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from quantaudit.core.step_log import FindingKind
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.checking.injections.transport import module_name
from quantaudit.training.checking.loop_mismatches import LAYOUT_NOT_REBUILT, PLACEMENT, SCALES_NOT_REFRESHED
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.faults import Halves, PostLoad
from quantaudit.training.rl.placement import Placement


def _plant_layout(options: Options) -> Points:
    pattern = options.text("stack", "*")

    def buckets(moment: Moment, sent: Sequence[Bucket]) -> Sequence[Bucket]:
        names = {piece.name for bucket in sent for piece in bucket.pieces if module_name(piece)}
        options.kept.words["stacks"] = tuple(sorted(names.union(options.kept.words.get("stacks", ()))))
        return sent

    def post_load(moment: Moment, declared: PostLoad) -> PostLoad:
        if not moment.is_active:
            return declared
        stacks = options.kept.words["stacks"]
        rebuilt = tuple(sorted(name for name in stacks if not fnmatch.fnmatchcase(name, pattern)))
        if len(rebuilt) == len(stacks):
            raise options.wrong("stack", f"a pattern that matches a stack of the engine, such as {min(stacks)}")
        return declared.model_copy(update={"rebuild": rebuilt})

    return Points(buckets=buckets, post_load=post_load)


def _plant_scales(options: Options) -> Points:
    def post_load(moment: Moment, declared: PostLoad) -> PostLoad:
        return declared.model_copy(update={"refresh_scales": False}) if moment.is_active else declared

    return Points(post_load=post_load)


def _plant_halves(options: Options) -> Points:
    wrong = [halves.value for halves in Halves if halves is not Halves.GATE_FIRST]
    halves = Halves(options.choice("halves", wrong))

    def post_load(moment: Moment, declared: PostLoad) -> PostLoad:
        return declared.model_copy(update={"halves": halves}) if moment.is_active else declared

    return Points(post_load=post_load)


def _plant_placement(options: Options) -> Points:
    pairs = options.count("pairs", 1)

    def swap(count: int) -> list[int]:
        swapped: list[int] = []
        while len(swapped) < 2 * pairs:
            swapped.append(options.draw([expert for expert in range(count) if expert not in swapped]))
        return swapped

    def placement(moment: Moment, declared: Placement) -> Placement:
        count = len(declared.place)
        if not moment.is_active or count < 2 * pairs:
            return declared
        swapped = options.kept.draw("swapped", lambda: swap(count))
        place = list(declared.place)
        for a, b in zip(swapped[::2], swapped[1::2], strict=True):
            place[a], place[b] = place[b], place[a]
        return declared.model_copy(update={"place": tuple(place)})

    return Points(placement=placement)


PLANS = (
    Plan(
        about=InjectionAbout(
            name="layout-not-rebuilt",
            kind=FindingKind.STATE,
            sentence=LAYOUT_NOT_REBUILT.sentence,
            found_as=("layout-not-rebuilt",),
            options={"stack": "pattern over the engine's names of stacks (default: all)"},
        ),
        plant=_plant_layout,
    ),
    Plan(
        about=InjectionAbout(
            name="layout-scales-kept",
            kind=FindingKind.STATE,
            sentence=SCALES_NOT_REFRESHED.sentence,
            found_as=("scales-not-refreshed",),
        ),
        plant=_plant_scales,
    ),
    Plan(
        about=InjectionAbout(
            name="gate-up-layout",
            kind=FindingKind.STATE,
            sentence="Gate and up are laid out in another order than the kernel reads.",
            found_as=("swapped-gate-up", "interleaved-gate-up"),
            options={"halves": "up-first or interleaved (default: drawn)"},
        ),
        plant=_plant_halves,
    ),
    Plan(
        about=InjectionAbout(
            name="placement-change",
            kind=FindingKind.STATE,
            sentence=PLACEMENT.sentence,
            found_as=("placement-change",),
            options={"pairs": "pairs of experts that change places (default: 1)"},
        ),
        plant=_plant_placement,
    ),
)
