"""What a served tensor proves by itself: the largest code of every group depends on the scale rule alone.

With a scale of absmax / 2^X the largest ratio of a group lies in an interval that the rule fixes: for E2M1, whose codes
4, 5, 6 and 7 are 2, 3, 4 and 6,

    floor [4, 8)    even [3.5, 7)    rceil (3, 6]    ceil (2, 4]    nearest (4.2, 8.5)    exponent of a / 6: [6, 12)

so a maximum of code 5 means rceil or ceil (or `even` with ties toward zero, at exactly 3.5), one of code 4 ceil, and
one of code 7 not ceil. That excludes rules for certain. What it leaves is weighed by frequency, for significands of
absmax that are log-uniform, which weights of many scales are to within some thousandths: likely, and no proof. Integers
are not weighed: whether a group shows -8 depends on its other members too.

Shape suffixes: G groups, N members, S significands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.format import BF16, E2M1, E8M0, FP32, CodebookFormat, FloatFormat, Format, IntegerFormat
from quantaudit.core.identification import CodeEvidence, RuleEvidence, Standing
from quantaudit.core.scheme import (
    CodeRange,
    ExponentRounding,
    ExponentScale,
    LinearScale,
    PerGroup,
    ScaleRule,
    Scheme,
    Tie,
)
from quantaudit.identity.mismatches.exponent_from_ratio import with_exponent_of_ratio
from quantaudit.identity.search_sample import Served
from quantaudit.identity.search_space import make_scheme, scale_rules
from quantaudit.numerics.grouping import plan, to_groups
from quantaudit.numerics.reference import quantize

DECISIVE_LOG10 = 3.0  # a thousand to one
APART = 2.0  # times the misfit of the best rule, at least, that any other must have
FITTING = 0.1  # half the summed difference of frequencies; another rule is off by at least .16
_MOST_SAID = 99
_MIN_ZEROS = 30  # all of one sign: two to the minus thirtieth


class _Seen(NamedTuple):
    """What was counted in one matrix, or in all of a stack: numbers are summed, and what is said holds for all."""

    histogram: Counter[int]
    can_weigh: bool
    is_e2m1: bool
    num_zeros: int  # codes 0
    num_negative: int  # codes -0
    is_fp32: bool
    are_powers: bool
    are_bf16: bool
    num_broken: int

    def joined(self, other: _Seen) -> _Seen:
        """Returns what was counted in both."""
        return _Seen(
            histogram=self.histogram + other.histogram,
            can_weigh=self.can_weigh and other.can_weigh,
            is_e2m1=self.is_e2m1 and other.is_e2m1,
            num_zeros=self.num_zeros + other.num_zeros,
            num_negative=self.num_negative + other.num_negative,
            is_fp32=self.is_fp32 and other.is_fp32,
            are_powers=self.are_powers and other.are_powers,
            are_bf16=self.are_bf16 and other.are_bf16,
            num_broken=self.num_broken + other.num_broken,
        )


def read_codes(served: Served) -> CodeEvidence:
    """Returns what the codes and scales of a quantized matrix say."""
    return read_all_codes([served])[1]


def read_all_codes(matrices: Iterable[Served]) -> tuple[str, CodeEvidence]:
    """Returns the format of quantized matrices and what their codes and scales say together.

    Args:
        matrices: At least one. Where they are of several formats, no rule is weighed.
    """
    elements: dict[str, Format] = {}
    seen: _Seen | None = None
    for served in matrices:
        assert served.element is not None
        elements[served.element.name] = served.element
        one = _look(served)
        seen = one if seen is None else seen.joined(one)
    assert seen is not None
    histogram = dict(sorted(seen.histogram.items()))
    can_weigh = seen.can_weigh and len(elements) == 1
    rules = weigh(histogram, next(iter(elements.values())), seen.are_powers) if can_weigh else ()
    return " and ".join(elements), CodeEvidence(
        num_groups=sum(histogram.values()),
        histogram={str(code): count for code, count in histogram.items()},
        rules=rules,
        facts=tuple(_facts(seen)),
    )


def _look(served: Served) -> _Seen:
    assert served.codes_RC is not None and served.scales_TT is not None
    assert served.element is not None and served.granularity is not None
    magnitudes = _magnitude(served.codes_RC, served.element)
    largest_G = to_groups(magnitudes, plan(served.shape, served.granularity))[0].amax(-1)
    counts = torch.bincount(largest_G[largest_G > 0].to(torch.int64))
    is_e2m1, is_fp32 = served.element == E2M1, served.container == FP32
    return _Seen(
        histogram=Counter({code: count for code, count in enumerate(counts.tolist()) if count}),
        can_weigh=not served.has_global and not isinstance(served.element, CodebookFormat),
        is_e2m1=is_e2m1,
        num_zeros=int(served.codes_RC.eq(0).sum()) if is_e2m1 else 0,
        num_negative=int(served.codes_RC.eq(E2M1.sign_code).sum()) if is_e2m1 else 0,
        is_fp32=is_fp32,
        are_powers=are_powers_of_two(served),
        are_bf16=is_fp32 and not bool((served.scales_TT.contiguous().view(torch.int32) & 0xFFFF).any()),
        num_broken=int((~served.scales_TT.isfinite()).sum()),
    )


def are_powers_of_two(served: Served) -> bool:
    """Says whether every scale of a quantized matrix that is not zero is a power of two."""
    assert served.scales_TT is not None
    return not (torch.frexp(served.scales_TT[served.scales_TT != 0]).mantissa.abs() != 0.5).any()


def weigh(histogram: Mapping[int, int], element: Format, is_power: bool) -> tuple[RuleEvidence, ...]:
    """Weighs scale rules by the largest codes of groups, the likeliest first.

    Args:
        histogram: Largest magnitude code of a group to the number of such groups.
        element: Format of the codes.
        is_power: Whether every scale is a power of two, so that no other rule is asked.
    """
    total = sum(histogram.values())
    if not total:
        return ()
    found = []
    for name, expected in _expected(element, is_power).items():
        strange = sorted(code for code in histogram if code not in expected)
        keys = {*histogram, *expected}
        distance = sum(abs(histogram.get(code, 0) / total - expected.get(code, 0.0)) for code in keys) / 2
        likelihood = -math.inf
        if not strange:
            likelihood = sum(count * math.log10(expected[code]) for code, count in histogram.items())
        found.append((likelihood, distance, name, strange))
    best = max(likelihood for likelihood, *_ in found)
    found.sort(key=lambda one: (-one[0], one[1]))
    is_weighed = not isinstance(element, IntegerFormat)
    return tuple(
        _evidence(name, distance, strange, histogram, best - likelihood if is_weighed else None)
        for likelihood, distance, name, strange in found
    )


def judge_codes(evidence: CodeEvidence) -> tuple[Standing, str, str]:
    """Returns how much the codes alone tell, the scale rule (empty if they do not tell), and a sentence."""
    possible = [rule for rule in evidence.rules if rule.is_possible]
    if not evidence.rules:
        return (
            Standing.NOT_CHECKED,
            "",
            "codes alone do not tell the rule of this format; give the masters: --master HI",
        )
    if not possible:
        return Standing.UNKNOWN, "", "no known scale rule has such group maxima"
    if len(possible) == 1:
        return Standing.PROVED, possible[0].rule, "every other rule is excluded; ties and arithmetic need the master"
    odds = possible[1].log10_odds or 0.0
    # Odds are for significands that are log-uniform. Where even the best rule is off, another that is hardly worse may
    # have made these codes from other weights: maxima of one Gaussian under floor look more like even than like floor.
    others = [rule.distance for rule in possible if rule.rule.split()[0] != possible[0].rule.split()[0]]
    is_apart = not others or min(others) > APART * possible[0].distance
    if odds >= DECISIVE_LOG10 and possible[0].distance <= FITTING and is_apart:
        power = f"10^{odds:.0f}" if odds < _MOST_SAID else f"more than 10^{_MOST_SAID}"
        sentence = f"{power} to 1 against {possible[1].rule}; likely is not proved: give the masters, --master HI"
        return Standing.LIKELY, possible[0].rule, sentence
    return Standing.NOT_CHECKED, "", "the codes alone do not decide between rules; give the masters: --master HI"


def _evidence(
    name: str, distance: float, strange: list[int], histogram: Mapping[int, int], log10_odds: float | None
) -> RuleEvidence:
    if strange:
        count = sum(histogram[code] for code in strange)
        codes = " and ".join(map(str, strange))
        why = f"excluded: {count} group maxima of code {codes}, which it never gives"
        return RuleEvidence(rule=name, is_possible=False, why=why, distance=distance)
    why = "possible" if log10_odds is None else f"possible: frequencies are off by {distance:.3f}"
    return RuleEvidence(rule=name, is_possible=True, why=why, distance=distance, log10_odds=log10_odds)


def _expected(element: Format, is_power: bool) -> dict[str, dict[int, float]]:
    """Returns the frequency of the largest code of a group by rule; rules that never differ share a line."""
    merged: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, scheme in _hypotheses(element, is_power).items():
        expected = _frequencies(scheme)
        if isinstance(element, IntegerFormat):
            expected = dict.fromkeys(expected, 1.0 / len(expected))
        merged.setdefault(tuple(sorted(expected.items())), []).append(name)
    return {" or ".join(names): dict(expected) for expected, names in merged.items()}


def _hypotheses(element: Format, is_power: bool) -> dict[str, Scheme]:
    found: dict[str, Scheme] = {}
    for rule in scale_rules(element, E8M0 if is_power else FP32):
        scheme = make_scheme(element, PerGroup(size=1), rule)
        if isinstance(rule, LinearScale) and isinstance(element, IntegerFormat):
            found.setdefault(_name(rule), scheme)
            if rule.divisor > element.max_code:
                narrow = CodeRange(low=-element.max_code, high=element.max_code)
                key = f"{_name(rule)} without {element.min_code}"
                found.setdefault(key, scheme.model_copy(update={"code_range": narrow}))
        elif isinstance(rule, LinearScale) is not is_power:
            found.setdefault(_name(rule), scheme)
        if isinstance(rule, ExponentScale) and is_power and rule.rounding is ExponentRounding.EVEN:
            found.setdefault(f"{_name(rule)} with ties toward zero", scheme.model_copy(update={"tie": Tie.ZERO}))
            broken = with_exponent_of_ratio(scheme)
            if broken is not None:
                found.setdefault(f"exponent of absmax / {rule.divisor:g}", broken)
    return found


def _name(rule: ScaleRule) -> str:
    if isinstance(rule, ExponentScale):
        return rule.rounding.value
    return f"absmax / {rule.divisor:g}" if rule.divisor > 0 else f"signed absmax / {rule.divisor:g}"


@lru_cache(maxsize=64)
def _frequencies(scheme: Scheme) -> dict[int, float]:
    """Returns the frequency of every code of a single value whose significand is log-uniform, in steps of bf16."""
    significand_S = 1 + torch.arange(128, dtype=torch.float64) / 128
    weight_S = torch.log2((significand_S + 1 / 256) / (significand_S - 1 / 256))
    values = torch.cat([significand_S, -significand_S]).to(torch.bfloat16).unsqueeze(1)
    codes = _magnitude(quantize(values, scheme).codes.squeeze(1), scheme.element)
    weights = torch.cat([weight_S, weight_S]) / (2 * weight_S.sum())
    mass = torch.zeros(256, dtype=torch.float64).index_add(0, codes.to(torch.int64), weights)
    return {code: float(mass[code]) for code in mass.nonzero().flatten().tolist()}


def _magnitude(codes: Tensor, element: Format) -> Tensor:
    """Returns codes without their sign, int16; those of a codebook as they are."""
    if isinstance(element, IntegerFormat):
        return codes.to(torch.int16).abs()
    return codes.to(torch.int16) & ~element.sign_code if isinstance(element, FloatFormat) else codes.to(torch.int16)


def _facts(seen: _Seen) -> Iterator[str]:
    if seen.is_e2m1 and seen.num_negative == 0 and seen.num_zeros >= _MIN_ZEROS:
        yield f"No code 8 (-0) beside {seen.num_zeros} codes 0: the sign of zero is dropped, as gguf does."
    if seen.is_fp32 and seen.are_powers:
        yield "Every scale is a power of two in an fp32 tensor."
    elif seen.is_fp32 and seen.are_bf16:
        yield f"Every scale is a {BF16.name} number in an fp32 tensor: it was rounded, or computed in bf16."
    if seen.num_broken:
        yield f"{seen.num_broken} scales are NaN or infinite."
