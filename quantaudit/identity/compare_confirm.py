"""What a mismatch accounts for, counted on every value of a layer: one expert at a time, by pieces of rows.

Matrices that do not differ are not read: nothing can be gained there. Projections of one height are predicted together,
since a fault may take the rows of one for those of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from quantaudit.identity.compare_crop import as_layer, crop
from quantaudit.identity.compare_leads import Between, Both, read_expert
from quantaudit.identity.mismatches.protocol import Finding, Layer, Projection
from quantaudit.identity.mismatches.sampling import SAMPLE_ROWS
from quantaudit.identity.mismatches.scoring import count_differing

_PIECE = 1 << 18  # values


def confirm(finding: Finding, layer: Between) -> Finding | None:
    """Returns a finding with what it accounts for in all; `None` if that is nothing."""
    explained, differing = 0, layer.num_differing()
    experts: dict[Projection, tuple[int, ...]] = {}
    is_stack = all(tensor.is_stack for tensor in layer.known.values())
    for expert in layer.differing():
        both = read_expert(layer, expert)
        for names in _by_height(both):
            if not any(both[name].record.num_values for name in names):
                continue
            part = {name: both[name] for name in names}
            for name, gained in _count_gained(finding, part, is_stack=is_stack).items():
                if gained > 0:
                    explained += gained
                    experts[name] = (*experts.get(name, ()), expert)
    if not explained:
        return None
    return replace(
        finding,
        explains=explained / differing,
        num_differing=differing,
        num_left=differing - explained,
        experts=experts,
    )


def _by_height(both: Mapping[Projection, Both]) -> list[list[Projection]]:
    found: dict[int, list[Projection]] = {}
    for name, pair in both.items():
        found.setdefault(pair.known.shape[0], []).append(name)
    return list(found.values())


def _count_gained(finding: Finding, both: Mapping[Projection, Both], *, is_stack: bool) -> Counter[Projection]:
    """Returns how many values fewer differ from the prediction than from the known side, by projection."""
    gained: Counter[Projection] = Counter()
    assert finding.predict is not None
    for train, serve in _pieces(finding, both, is_stack=is_stack):
        predicted = finding.predict(train)
        if predicted is None:
            continue
        for name, served in serve.items():
            before, after = (count_differing(side[name].values, served.values) for side in (train, predicted))
            gained[name] += int(before.sum()) - int(after.sum())
    return gained


def _pieces(finding: Finding, both: Mapping[Projection, Both], *, is_stack: bool) -> Iterator[tuple[Layer, Layer]]:
    height, width = next(iter(both.values())).known.shape
    step = max(1, _PIECE // (width * SAMPLE_ROWS)) * SAMPLE_ROWS if finding.is_by_rows else height
    for start in range(0, height, step):
        rows = torch.arange(start, min(start + step, height))
        train, serve = (
            as_layer({name: [crop(pair.sides[side], rows)] for name, pair in both.items()}, is_stack=is_stack)
            for side in (0, 1)
        )
        yield train, serve
