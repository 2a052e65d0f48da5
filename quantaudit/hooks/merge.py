"""Merges the shards of all workers into the manifest of the whole model. Standard library only.

    values(whole) = sum over boxes of values(box)    mod 2^64, lane by lane

Boxes that two workers both hold (replicas) must have equal leaves and count once. Any other overlap, a gap, and shards
of different weight versions are refused: a manifest never stands for weights that nobody looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quantaudit.core.errors import InputError
from quantaudit.hooks.manifest_text import manifest_text
from quantaudit.hooks.shards import Entry, Place, Shard

MAX_EXPERT_LEAVES = 4096  # beyond it, leaves of single experts are left out unless asked for
_MASK = (1 << 64) - 1


class _Held(NamedTuple):
    """A box, and the first worker that holds it."""

    entry: Entry
    worker: str


def merge_shards(shards: Sequence[Shard], *, experts: bool | None = None) -> str:
    """Returns the JSON text of the manifest that shards make together.

    Args:
        shards: Of all workers, in any order.
        experts: Whether single experts get digests; up to 4096 matrices when `None`.

    Raises:
        InputError: If they do not make one whole of one version.
    """
    kinds = {(shard.weight_version, shard.decoded_to) for shard in shards}
    if len(kinds) != 1:
        found = sorted(f"version {version} in {dtype}" for version, dtype in kinds)
        raise InputError(
            f"shards of {', '.join(found) or 'no worker'}",
            expected="one weight version and one dtype",
            fix="export in every worker, once the sync is done",
        )
    boxes: dict[str, dict[tuple[Place, Place], _Held]] = {}
    for shard in shards:
        for entry in shard.entries:
            _put(boxes.setdefault(entry.name, {}), _Held(entry, shard.worker))
    whole = [_join([held.entry for held in boxes[name].values()]) for name in sorted(boxes)]
    num_matrices = sum(entry.shape[0] for entry in whole if entry.is_stack)
    keep_experts = num_matrices <= MAX_EXPERT_LEAVES if experts is None else experts
    return manifest_text(whole, shards[0].decoded_to, keep_experts=keep_experts)


def _put(boxes: dict[tuple[Place, Place], _Held], new: _Held) -> None:
    held = boxes.setdefault((new.entry.first, new.entry.size), new)
    if held.entry != new.entry:
        raise InputError(
            f"{new.entry.name}: {held.worker} and {new.worker} hold one box with different values",
            expected="equal replicas",
            fix="load the weights of both again: one of them missed an update",
        )


def _join(entries: Sequence[Entry]) -> Entry:
    head = entries[0]
    if len({(entry.shape, entry.storage, entry.is_stack) for entry in entries}) > 1:
        raise InputError(
            f"{head.name} with two shapes or storages", expected="one model", fix="load one model in all workers"
        )
    if any(_overlap(a, b) for i, a in enumerate(entries) for b in entries[:i]):
        raise InputError(f"boxes of {head.name} that overlap", expected="a partition", fix="correct where they begin")
    held, needed = sum(math.prod(entry.size) for entry in entries), math.prod(head.shape)
    if held != needed:
        raise InputError(
            f"{held} of {needed} values of {head.name}", expected="all of them", fix="add the shards of all workers"
        )
    experts = _join_experts(entries) if all(entry.experts for entry in entries) else ()
    return replace(head, values=_add(e.values for e in entries), bytes=_add(e.bytes for e in entries), experts=experts)


def _overlap(a: Entry, b: Entry) -> bool:
    axes = zip(a.first, a.size, b.first, b.size, strict=True)
    return all(x < y + b_size and y < x + a_size for x, a_size, y, b_size in axes)


def _join_experts(entries: Sequence[Entry]) -> tuple[str, ...]:
    leaves: dict[int, list[str]] = {}
    for entry in entries:
        for expert, leaf in enumerate(entry.experts, start=entry.first[0]):
            leaves.setdefault(expert, []).append(leaf)
    return tuple(_add(leaves[expert]) for expert in sorted(leaves))


def _add(leaves: Iterable[str]) -> str:
    lanes = [(int(leaf[:16], 16), int(leaf[16:], 16)) for leaf in leaves]
    first, second = (sum(lane) & _MASK for lane in zip(*lanes, strict=True))
    return f"{first:016x}{second:016x}"
