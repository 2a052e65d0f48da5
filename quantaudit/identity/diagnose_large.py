"""The mismatches of a layer that is too large to try everything on: a few rows first, then what they point to.

    1. Some rows of every weight, half of them where the sides differ most, go through every mismatch and scheme.
    2. What leads there is predicted on every value. If that explains all, it is the answer.
    3. What moves values between rows, or measures a scale over whole blocks or matrices, shows in no few rows: it is
       tried on everything, or on one band of blocks, under the likeliest schemes.

So the work is a few passes over the layer, whether or not anything explains it, and nothing is reported that was not
counted on every value; only the share of what comes second may be that of the rows looked at. What explains under half
of the layer is named where it explains half of some expert: less than that, a wrong scheme leaves by chance.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, PerChannel, PerGroup, PerToken, Scheme, TwoLevel
from quantaudit.identity.layer_pair import Pair, Pairs, count_values, fits, serve_layer, train_layer
from quantaudit.identity.mismatches import (
    cut_groups,
    interleaved_gate_up,
    permuted_experts,
    quantized_twice,
    swapped_gate_up,
    transposed_scales,
    transposed_weights,
)
from quantaudit.identity.mismatches.protocol import Finding, Layer, Mismatch
from quantaudit.identity.mismatches.registry import MISMATCHES, search_mismatches
from quantaudit.identity.mismatches.sampling import SAMPLE_ROWS, quantizes_by_rows
from quantaudit.identity.mismatches.scoring import count_differing, in_full, num_differing
from quantaudit.numerics import fused_fake_quantize

LARGE = 1 << 21  # values of a layer, beyond which rows are drawn
_DRAWN = 1 << 16  # values of the rows drawn
_BAND = 1 << 19  # values of a band of blocks
_TRIED_IN_FULL = 2  # schemes
_ACROSS_ROWS: tuple[Mismatch, ...] = (
    permuted_experts,
    swapped_gate_up,
    interleaved_gate_up,
    transposed_weights,
    transposed_scales,
)
_IN_BLOCKS: tuple[Mismatch, ...] = (quantized_twice,)


class Searched(NamedTuple):
    """A scheme, and what accounts for the difference from it: the first counted on every value."""

    scheme: Scheme
    findings: tuple[Finding, ...]

    @property
    def num_left(self) -> int:
        """Returns the values that scheme and fault together do not give."""
        return self.findings[0].num_left


def search_large(pairs: Pairs, schemes: Sequence[Scheme]) -> Searched | None:
    """Searches the mismatches of a large layer; `None` if none accounts for anything.

    Args:
        pairs: Both sides of the layer.
        schemes: Schemes that the trainer may have meant, the likeliest first.
    """
    fitting = [scheme for scheme in schemes if fits(pairs, scheme)]
    if not fitting:
        return None
    serve = serve_layer(pairs)
    leads, order = _search_rows(_draw(pairs, fitting), fitting)
    best: Searched | None = None
    for scheme in order[:_TRIED_IN_FULL]:
        train = train_layer(pairs, scheme)
        for lead in leads:
            best = _better(best, _confirm(lead, train, serve) if lead.scheme == scheme else None)
        if best is None or best.num_left:
            best = _better(best, _search_in_full(scheme, pairs, train, serve))
        if best is not None and best.num_left == 0:
            return best
        if best is None and _gives_most(train, serve):
            return None
    return best if best is None else _try_schemes(best, order[_TRIED_IN_FULL:], pairs, serve)


def _try_schemes(best: Searched, schemes: list[Scheme], pairs: Pairs, serve: Layer) -> Searched:
    """Returns the scheme under which a mismatch that explains most leaves least."""
    name = best.findings[0].about.name
    for scheme in schemes if best.findings[0].is_convincing else []:
        found = _ask(name, train_layer(pairs, scheme), serve)
        if found is not None and found.num_left < best.num_left:
            best = Searched(scheme, (found, *best.findings[1:]))
        if best.num_left == 0:
            break
    return best


def _search_rows(drawn: Pairs | None, schemes: list[Scheme]) -> tuple[list[Searched], list[Scheme]]:
    """Returns what drawn rows show under every scheme, and the schemes in the order in which to go on.

    The one that leaves the fewest values comes first, by itself or with what explains most of the rest: a wrong scheme
    with a fault that nearly undoes it must not hide the right one.
    """
    if drawn is None:
        return [], schemes
    serve = serve_layer(drawn)
    leads: list[Searched] = []
    num_left: dict[str, int] = {}
    for scheme in [s for s in schemes if _has_own_rows(s)]:
        train = train_layer(drawn, scheme)
        num_left[scheme.name] = num_differing(train, serve)
        findings = search_mismatches(train, serve)
        findings = tuple(one for one in findings if one.is_convincing_somewhere)
        if findings:
            leads.append(Searched(scheme, findings))
            num_left[scheme.name] = findings[0].num_left
            if findings[0].num_left == 0:
                break
    return leads, sorted(schemes, key=lambda scheme: num_left.get(scheme.name, count_values(drawn)))


def _confirm(lead: Searched, train: Layer, serve: Layer) -> Searched | None:
    """Returns what leads on some rows, counted on every value; `None` if that is nothing."""
    leading = lead.findings[0]
    whole = in_full(leading, train, serve) or _ask(leading.about.name, train, serve)
    return None if whole is None else Searched(lead.scheme, (whole, *lead.findings[1:]))


def _search_in_full(scheme: Scheme, pairs: Pairs, train: Layer, serve: Layer) -> Searched | None:
    """Returns what few rows do not show."""
    found = [one for mismatch in _across_rows(scheme) if (one := mismatch.recognise(train, serve)) is not None]
    found += _search_band(scheme, pairs, train, serve)
    ordered = tuple(sorted((one for one in found if one.is_convincing_somewhere), key=lambda one: one.num_left))
    return Searched(scheme, ordered) if ordered else None


def _gives_most(train: Layer, serve: Layer) -> bool:
    """Says whether a scheme gives most values: then it is the right one, whatever else happened."""
    return 2 * num_differing(train, serve) < sum(weight.values.numel() for weight in serve.values())


def _across_rows(scheme: Scheme) -> tuple[Mismatch, ...]:
    if not _has_own_rows(scheme) and not quantizes_by_rows(scheme):
        return tuple(mismatch for mismatch in MISMATCHES if mismatch not in _IN_BLOCKS)
    return _ACROSS_ROWS if _has_own_rows(scheme) else (*_ACROSS_ROWS, cut_groups)


def _search_band(scheme: Scheme, pairs: Pairs, train: Layer, serve: Layer) -> Iterator[Finding]:
    """Yields, counted on every value, what a band of whole blocks shows."""
    band = _take_band(pairs, train, serve) if quantizes_by_rows(scheme) else None
    if band is None:
        return
    part_train, part_serve = train_layer(band, scheme), serve_layer(band)
    for mismatch in _IN_BLOCKS if _has_own_rows(scheme) else MISMATCHES:
        found = None if mismatch in _ACROSS_ROWS else mismatch.recognise(part_train, part_serve)
        whole = in_full(found, train, serve) if found is not None and found.is_convincing_somewhere else None
        if whole is not None:
            yield whole


def _ask(name: str, train: Layer, serve: Layer) -> Finding | None:
    return next(m for m in MISMATCHES if name == m.ABOUT.name).recognise(train, serve)


def _better(a: Searched | None, b: Searched | None) -> Searched | None:
    if a is None or b is None:
        return a or b
    return min(a, b, key=lambda one: one.num_left)


def _has_own_rows(scheme: Scheme) -> bool:
    """Says whether a row is quantized from itself alone, but for the absmax of the matrix under a second level."""
    if not isinstance(scheme.granularity, PerGroup | PerChannel | PerToken):
        return False
    return quantizes_by_rows(scheme) or _has_second_level(scheme)


def _has_second_level(scheme: Scheme) -> bool:
    return isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)


def _draw(pairs: Pairs, schemes: list[Scheme]) -> Pairs | None:
    """Returns some rows of every weight, the same of all experts; `None` where a weight has another shape."""
    if any(pair.master.shape != pair.served.shape for pair in pairs.values()):
        return None
    share = _DRAWN / count_values(pairs)
    rows: dict[int, Tensor] = {}  # by the height of a weight: what gate and up exchange lies in equal rows
    for pair in pairs.values():
        chosen_K, height = _choose_rows(pair, schemes, share), pair.master.shape[-2]
        rows[height] = torch.cat((rows[height], chosen_K)).unique() if height in rows else chosen_K
    return {name: _take(pair, rows[pair.master.shape[-2]]) for name, pair in pairs.items()}


def _choose_rows(pair: Pair, schemes: list[Scheme], share: float) -> Tensor:
    """Returns numbers of rows, [K]: half of them those that differ most from the likeliest scheme, half spread."""
    num_rows = pair.master.shape[-2]
    half = max(1, round(num_rows * share / 2))
    differing_R = _count_by_row(pair, schemes[0])
    most = differing_R.topk(min(half, num_rows)).indices
    spread = torch.linspace(0, num_rows - 1, min(half, num_rows)).long()
    rows_K: Tensor = torch.cat((most, spread, *_rows_of_absmax(pair, schemes))).unique()
    return rows_K


def _rows_of_absmax(pair: Pair, schemes: list[Scheme]) -> Iterator[Tensor]:
    """Yields the rows that decide a scale above the scales, [E] for every master."""
    if any(map(_has_second_level, schemes)):
        for master in (pair.master, *pair.earlier):
            yield master.abs().amax(-1).argmax(-1).reshape(-1)


def _count_by_row(pair: Pair, scheme: Scheme) -> Tensor:
    """Returns how many values of every row differ from what a scheme makes of the master, [R], over all experts."""
    differs = fused_fake_quantize(pair.master.contiguous(), scheme).to(pair.served.dtype) != pair.served
    return differs.sum(-1) if differs.dim() < 3 else differs.sum((0, -1))


def _take_band(pairs: Pairs, train: Layer, serve: Layer) -> Pairs | None:
    """Returns the first whole blocks of the experts that differ most; `None` where a weight has none."""
    if any(p.master.shape != p.served.shape or p.master.shape[-2] < SAMPLE_ROWS for p in pairs.values()):
        return None
    rows = torch.arange(SAMPLE_ROWS)
    width = sum(pair.master.shape[-1] for pair in pairs.values())
    most = max(1, _BAND // (SAMPLE_ROWS * width))
    stacks = [name for name, pair in pairs.items() if pair.master.dim() > 2]
    if all(len(pairs[name].master) <= most for name in stacks):
        return {name: _take(pair, rows) for name, pair in pairs.items()}
    differing_E = sum(
        count_differing(train[name].values, serve[name].values, slack=serve[name].slack) for name in stacks
    )
    assert isinstance(differing_E, Tensor)
    experts_K = differing_E.topk(most).indices.sort().values
    return {name: _take_experts(_take(pair, rows), experts_K) for name, pair in pairs.items()}


def _take_experts(pair: Pair, experts_K: Tensor) -> Pair:
    if pair.master.dim() < 3:
        return pair
    return Pair(
        master=pair.master[experts_K],
        served=pair.served[experts_K],
        earlier=tuple(master[experts_K] for master in pair.earlier),
    )


def _take(pair: Pair, rows: Tensor) -> Pair:
    return Pair(
        master=pair.master[..., rows, :],
        served=pair.served[..., rows, :],
        earlier=tuple(master[..., rows, :] for master in pair.earlier),
    )
