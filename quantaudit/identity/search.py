"""Finds the scheme that made a served matrix from its master: scales first, then codes, then proof on every value.

    1. Scale rules are compared with the stored scales, or, for plain numbers, tried with the usual code rules.
    2. Those that fit, times all code rules, are tried on a sample; whoever gives the fewest values wrong leads.
    3. The leader is tried on every value. Groups in which it fails join the sample, and 2 is repeated.

So a rule that differs once in a million values is found by the group in which it does, and no sample is ever a proof.

Shape suffixes: R rows, C columns, G groups, K groups drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.identification import Alternative
from quantaudit.core.scheme import ExponentScale, Granularity, LinearScale, ScaleRule, Scheme
from quantaudit.identity.rule import explain
from quantaudit.identity.search_sample import (
    MAX_MEMBERS,
    Grouped,
    Misses,
    Served,
    choose_groups,
    decode_served,
    differs,
    draw,
    global_ratio,
    group,
    try_scheme,
)
from quantaudit.identity.search_space import (
    ELEMENTS,
    arithmetic_variants,
    base_schemes,
    can_group,
    double_schemes,
    floored_rules,
    granularities,
    is_bundled,
    make_scheme,
    name_scheme,
    rounding_variants,
    scale_rules,
    scale_variants,
    two_level_schemes,
)
from quantaudit.numerics import scales
from quantaudit.numerics.exponent import choose_exponent
from quantaudit.numerics.reference import INPUT_DTYPES

_PIECE = 1 << 18  # values compared at a time
_SMALL, _LARGE = 1 << 12, 1 << 16  # values of a sample
_SCALES_COMPARED = 1 << 14
_ROUNDS = 4
_NEW_GROUPS = 64
_MAX_ALTERNATIVES = 4
_KEPT_BASES, _KEPT_VARIANTS, _KEPT_GRAINS = 3, 12, 6
_CLOSE = 0.01  # a granularity this much worse on a sample is another one
_UNRELATED = 0.9
_HOPELESS = 0.5  # of the values wrong: no rule of this format will do


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The scheme that gives most of a matrix.

    Attributes:
        scheme: The scheme, under its catalogue name or that of its nearest relative.
        misses: What it does not give of the whole matrix.
        num_values: Values of the matrix.
        alternatives: What the matrix does not tell apart from it; or, where it does not give all, what comes next.
    """

    scheme: Scheme
    misses: Misses
    num_values: int
    alternatives: tuple[Alternative, ...]

    @property
    def is_exact(self) -> bool:
        """Says whether it gives every value."""
        return self.misses.values == 0


class _Tried(NamedTuple):
    """A candidate, what it gave wrong, and its place in the order of preference."""

    misses: Misses
    place: int
    scheme: Scheme


def search(master: Tensor, served: Served) -> Found | None:
    """Returns the scheme that gives most values of a served matrix; `None` if no granularity fits its shape.

    Args:
        master: [R, C], fp32, bf16 or fp16, which is widened.
        served: The same shape.
    """
    if master.dtype not in INPUT_DTYPES:
        master = master.float()
    if served.codes_RC is not None:
        bases = fit_scales(master, served)
        return _below_global(bases, master, served) or _prove(bases, master, served)
    found: Found | None = None
    for share, bases in _fit_values(master, served):
        if share > _HOPELESS:
            return _without_proof(bases[0], master, served)
        tried = _prove(_distinct([scheme for base in bases for scheme in scale_variants(base)]), master, served)
        if found is None or tried.misses < found.misses:
            found = tried
        if found.is_exact:
            break
    return found


def count_misses(master: Tensor, served: Served, scheme: Scheme) -> Misses:
    """Counts what one scheme does not give of a matrix; of codes in another format, nothing."""
    if served.element is not None and served.element != scheme.element:
        return Misses(values=master.numel())
    if master.dtype not in INPUT_DTYPES:
        master = master.float()
    return _try_all(scheme, group(master, served, scheme.granularity), served)[0]


def is_unquantized(master: Tensor, served: Served) -> bool:
    """Says whether plain numbers are the master, in their own dtype."""
    return served.values_RC is not None and not differs(master.to(served.values_RC.dtype), served.values_RC).any()


def is_related(master: Tensor, served: Served) -> bool:
    """Says whether a served matrix is nearer to its master than to nothing, as every quantization of it is.

    That is |served - master| < .9 |master| in the Euclidean norm; unrelated matrices of one size are 1.4 apart.
    """
    values, wanted = decode_served(served), master.float()
    length = torch.linalg.vector_norm(wanted)
    if not values.isfinite().all() or length == 0:
        return True
    if served.has_global:
        values = values * (length / torch.linalg.vector_norm(values).clamp(min=1e-30))
    return bool(torch.linalg.vector_norm(values - wanted) < _UNRELATED * length)


def _prove(bases: list[Scheme], master: Tensor, served: Served) -> Found:
    """Tries the leader on everything until one gives every value, or failures teach nothing new.

    Args:
        bases: Schemes of one format and granularity, a scale rule each.
        master: [R, C], fp32 or bf16.
        served: The same shape.
    """
    grouped = group(master, served, bases[0].granularity)
    width = min(grouped.master_GN.shape[1], MAX_MEMBERS)
    variants = [v for base in bases for v in arithmetic_variants(base, is_narrow=master.dtype != torch.float32)]
    groups_K = choose_groups(grouped.absmax_G, max(1, _LARGE // width))
    kept = _expand(variants, draw(grouped, choose_groups(grouped.absmax_G, max(1, _SMALL // width))), served)
    tried: dict[str, tuple[Misses, Scheme]] = {}
    ranked: list[_Tried] = []
    for _ in range(_ROUNDS):
        ranked = _rank(kept, draw(grouped, groups_K), served)
        leader = ranked[0].scheme
        if leader.arithmetic_digest in tried:
            break
        misses, wrong_K = _try_all(leader, grouped, served)
        tried[leader.arithmetic_digest] = (misses, leader)
        if misses.values == 0 or misses.values > _HOPELESS * master.numel():
            break
        chosen = wrong_K[torch.linspace(0, len(wrong_K) - 1, min(_NEW_GROUPS, len(wrong_K))).long()]
        groups_K = torch.cat([groups_K, chosen]).unique()
        # What the first sample turned away, or a floor, may be what these groups need.
        floors = floored_rules(leader.scale, float(grouped.absmax_G[chosen].min()))
        more = [leader.model_copy(update={"scale": rule}) for rule in floors]
        kept = _distinct([*kept, *more, *_expand(variants, draw(grouped, chosen), served)])
    misses, leader = min(tried.values(), key=lambda one: one[0])
    scheme = name_scheme(leader)
    return Found(
        scheme=scheme,
        misses=misses,
        num_values=master.numel(),
        alternatives=_alternatives(scheme, ranked, len(groups_K) * width, is_exact=misses.values == 0),
    )


def _below_global(bases: list[Scheme], master: Tensor, served: Served) -> Found | None:
    """Returns the scheme that gives all but the global scale, with the values that are off for it; else `None`.

    Under another global scale few values are right, and those by chance: they say nothing of the scheme.
    """
    if global_ratio(master, served, bases[0]) == 1:
        return None
    found = _prove(bases, master, replace(served, global_scale=None))
    if not found.is_exact:
        return None
    return replace(found, misses=count_misses(master, served, found.scheme), alternatives=())


def _without_proof(nearest: Scheme, master: Tensor, served: Served) -> Found:
    """Returns what plain numbers come nearest to where no sample shows a rule.

    That is so of schemes whose scales are quantized in turn, less the mean of all scales: they are tried on everything.
    """
    best: tuple[Misses, Scheme] | None = None
    for scheme in (nearest, *double_schemes()):
        if can_group(served.shape, scheme.granularity):
            misses = count_misses(master, served, scheme)
            best = (misses, scheme) if best is None or misses < best[0] else best
        if best is not None and best[0].values == 0:
            break
    assert best is not None
    return Found(scheme=name_scheme(best[1]), misses=best[0], num_values=master.numel(), alternatives=())


def _expand(variants: list[Scheme], sample: Grouped, served: Served) -> list[Scheme]:
    """Returns what a sample leaves of schemes times tie rules and code ranges: the catalogue first, then in order."""
    leading = _promising(_rank(variants, sample, served))[:_KEPT_VARIANTS]
    kept = _promising(_rank([v for one in leading for v in rounding_variants(one)], sample, served))
    return sorted(kept, key=lambda scheme: not is_bundled(scheme))


def _rank(candidates: Iterable[Scheme], sample: Grouped, served: Served) -> list[_Tried]:
    """Tries candidates on a sample, the best first; the earlier of two equals first."""
    tried = [
        _Tried(try_scheme(scheme, sample, served).misses, place, scheme) for place, scheme in enumerate(candidates)
    ]
    return sorted(tried, key=lambda one: one[:2])


def _promising(ranked: list[_Tried]) -> list[Scheme]:
    """Returns the candidates that a larger sample may still put first, in the order of preference."""
    limit = 2 * ranked[0].misses.values + 4
    kept = [one for one in ranked if one.misses.values <= limit][:64]
    return [one.scheme for one in sorted(kept, key=lambda one: one.place)]


def _distinct(schemes: list[Scheme]) -> list[Scheme]:
    return list({scheme.arithmetic_digest: scheme for scheme in schemes}.values())


def _try_all(scheme: Scheme, grouped: Grouped, served: Served) -> tuple[Misses, Tensor]:
    """Tries a scheme on every value, a piece at a time; a second level needs all groups at once.

    Returns:
        The misses, and the numbers of groups with a wrong value, [K].
    """
    count, size = grouped.master_GN.shape
    rule = scheme.scale
    is_whole = isinstance(rule, LinearScale) and rule.second_level is not None
    step = count if is_whole else max(1, _PIECE // size)
    total, wrong = Misses(), []
    for start in range(0, count, step):
        part = Grouped(*(None if x is None else x[start : start + step] for x in grouped))  # type: ignore[arg-type]
        compared = try_scheme(scheme, part, served)
        total = Misses(*(a + b for a, b in zip(total, compared.misses, strict=True)))
        if compared.misses.values:
            wrong.append(compared.is_wrong_K.nonzero().flatten() + start)
    return total, torch.cat(wrong) if wrong else torch.empty(0, dtype=torch.int64)


def _alternatives(scheme: Scheme, ranked: list[_Tried], num_tried: int, *, is_exact: bool) -> tuple[Alternative, ...]:
    found: list[Alternative] = []
    for one in ranked:
        if is_exact and one.misses.values:
            break
        other = name_scheme(one.scheme)
        if other.arithmetic_digest == scheme.arithmetic_digest:
            continue
        fields = tuple(f"{d.field} = {d.b_value}" for d in explain(scheme, other, None))
        share = 1.0 - one.misses.values / num_tried
        found.append(Alternative(scheme=other.name, differs_in=fields, explains=share, num_checked=num_tried))
        if len(found) == _MAX_ALTERNATIVES:
            break
    return tuple(found)


def fit_scales(master: Tensor, served: Served) -> list[Scheme]:
    """Returns a scheme for every scale rule that gives the stored scales; the nearest ones if none gives all."""
    assert served.element is not None and served.granularity is not None
    if served.has_global:
        return list(two_level_schemes(served.granularity))
    grouped = group(master, served, served.granularity)
    sample = draw(grouped, choose_groups(grouped.absmax_G, _SCALES_COMPARED))
    assert sample.scales_G is not None
    rules = list(scale_rules(served.element, served.container))
    best = _least_wrong(rules, sample)
    if best[0][0] > 0:  # small groups and groups of zeros may follow a rule of their own
        smallest = float(grouped.absmax_G.min())
        leading = [rule for _, _, rule in best[:_KEPT_BASES]]
        rules = leading + [floored for rule in leading for floored in floored_rules(rule, smallest)]
        best = _least_wrong(rules + _zero_rules(leading, sample), sample)
    fitting = [rule for wrong, _, rule in best if wrong == 0] or [rule for _, _, rule in best[:_KEPT_BASES]]
    return [make_scheme(served.element, served.granularity, rule) for rule in fitting]


def _least_wrong(rules: list[ScaleRule], sample: Grouped) -> list[tuple[int, int, ScaleRule]]:
    """Returns how many stored scales every rule gives wrong, its place, and the rule; the least first."""
    assert sample.scales_G is not None
    counted = [(_count_wrong(rule, sample, sample.scales_G), place, rule) for place, rule in enumerate(rules)]
    return sorted(counted, key=lambda one: one[:2])


def _count_wrong(rule: ScaleRule, sample: Grouped, stored_K: Tensor) -> int:
    statistic_K = scales.measure(sample.master_GN, rule)
    if isinstance(rule, ExponentScale):
        chosen_K = choose_exponent(statistic_K, rule)
    else:
        chosen_K = scales.store(scales.choose_linear(statistic_K, rule), rule)
    return int(differs(scales.decode_stored(chosen_K, rule), stored_K).sum())


def _zero_rules(rules: list[ScaleRule], sample: Grouped) -> list[ScaleRule]:
    """Returns power-of-two rules with the scale that groups of zeros are served with, if there are such groups."""
    assert sample.scales_G is not None
    at_zero = sample.scales_G[sample.absmax_G == 0]
    if not len(at_zero) or not bool(at_zero[0] > 0):
        return []
    fraction, exponent = torch.frexp(at_zero[0])
    if fraction != 0.5:
        return []
    code = max(0, int(exponent) - 1 + 127)
    return [
        r.model_copy(update={"zero_code": code}) for r in rules if isinstance(r, ExponentScale) and r.zero_code != code
    ]


def _fit_values(master: Tensor, served: Served) -> list[tuple[float, list[Scheme]]]:
    """Returns schemes that plain numbers may have been made by, with the share that they give wrong, the least first.

    Those of one entry share format and granularity.
    """
    found: list[tuple[float, list[Scheme]]] = []
    for granularity, schemes in _by_granularity(served.shape).items():
        grouped = group(master, served, granularity)
        width = min(grouped.master_GN.shape[1], MAX_MEMBERS)
        sample = draw(grouped, choose_groups(grouped.absmax_G, max(1, _SMALL // width)))
        ranked = _rank(schemes, sample, served)
        leader = ranked[0].scheme.element
        kept = [scheme for scheme in _promising(ranked) if scheme.element == leader]
        found.append((ranked[0].misses.values / sample.master_GN.numel(), kept))
    found.sort(key=lambda one: one[0])
    limit = 2 * found[0][0] + _CLOSE if found else 0.0
    return [one for one in found[:_KEPT_GRAINS] if one[0] <= limit]


def _by_granularity(shape: tuple[int, int]) -> dict[Granularity, list[Scheme]]:
    found: dict[Granularity, list[Scheme]] = {}
    for element in ELEMENTS:
        for granularity in granularities(shape, element):
            found.setdefault(granularity, []).extend(base_schemes(element, granularity))
    return found
