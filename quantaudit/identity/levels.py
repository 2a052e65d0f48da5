"""The levels of a certificate, one function each: what is enumerated, what is sampled, and how that is said.

* `enumerate_all`: `complete` for bf16, every statistic with every value; for fp32 `boundary`, both sides of every step
  of the code, and `factored` on demand for power-of-two scales.
* `factor`: `factored`, for scales of two levels.
* `compare_codes`: `conditional`, for double-quantized scales: codes complete, the rest on whole matrices.
* `decode_all`: `decode only`, every code under every scale.
* `sample`: `conditional`, whole matrices and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantaudit.core.certificate import Assumption, BlockKind, BlockSection, Domain, Level, RuleDifference
from quantaudit.core.scheme import ExponentScale, Scheme
from quantaudit.identity.assumptions import check_assumptions
from quantaudit.identity.decoding import compare_decoding
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import INPUTS, ladder_blocks
from quantaudit.identity.double_quantized import enumerate_codes
from quantaudit.identity.enumeration import Progress, enumerate_blocks
from quantaudit.identity.fast_reference import has_staircase
from quantaudit.identity.findings import FINITE_SPECIAL, Findings, finite_section, start_counting
from quantaudit.identity.monotonic import check_monotonic
from quantaudit.identity.observe import is_signed, ladder_multiple
from quantaudit.identity.opposed_groups import Takes, compare_opposed, find_what_it_takes
from quantaudit.identity.partial_groups import compare_partial, has_partial_groups
from quantaudit.identity.ratio_domain import absmax_blocks, num_ratios, ratio_blocks
from quantaudit.identity.sides import Side
from quantaudit.identity.special_blocks import compare_special
from quantaudit.identity.treads import boundary_blocks, boundary_statistics
from quantaudit.identity.two_level import enumerate_factored
from quantaudit.identity.whole_tensors import compare_whole, sample_matrices

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
_ALL_PAIRS = "every finite statistic with every value of at most its magnitude, both signs, both zeros"
_NO_DEEPER = "There is nothing deeper to try for these sides: --deep changed nothing."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Two sides and how to compare them.

    Attributes:
        sides: Both sides.
        dtype: Of the inputs.
        out_dtype: Of decoded values where a side leaves it open.
        is_deep: Whether what takes minutes to hours is tried too.
        progress: Told (stage, done, total).
    """

    sides: tuple[Side, Side]
    dtype: torch.dtype
    out_dtype: torch.dtype
    is_deep: bool
    progress: Progress


def enumerate_all(run: Run) -> Findings:
    """Compares sides of one domain of (statistic, value) pairs: all of them in bf16, the steps in fp32."""
    tallies = start_counting(run.sides)
    scheme, assumptions = run.sides[0].scheme, _check(run)
    level = _enumerate_bf16(run, tallies) if run.dtype is torch.bfloat16 else _enumerate_steps(run, tallies)
    if level is not Level.COMPLETE:
        open_sides = [side for side in run.sides if not side.has_stairs]
        assumptions += tuple(check_monotonic(side, run.dtype, run.out_dtype) for side in open_sides)
    rules, sampled = _compare_order(run, tallies)
    sections, notes = _special(run, tallies)
    can_be_deep = level is Level.FACTORED
    return Findings(
        level=level,
        tallies=tallies,
        sections=sections,
        assumptions=assumptions,
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="signed value of largest magnitude" if _has_sign(run) else "absolute maximum of a group",
            num_statistics=_num_statistics(tallies),
            enumerated=_enumerated(level),
            sampled=(*_sampled(scheme, level), *sampled),
            deep=run.is_deep,
        ),
        notes=(*notes, *((_NO_DEEPER,) if run.is_deep and not can_be_deep else ())),
        rules=rules,
    )


def factor(run: Run) -> Findings:
    """Compares sides of two-level scales in bf16: scales under every matrix absmax, then values under every scale."""
    tallies = start_counting(run.sides)
    assumptions = _check(run)
    enumerate_factored(run.sides, INPUTS[run.dtype], tallies, run.out_dtype, run.progress, is_deep=run.is_deep)
    sections, notes = _special(run, tallies)
    far = "all of them" if run.is_deep else "one in 61 where the scale is its floor"
    low = "every one" if run.is_deep else "every fourth"
    return Findings(
        level=Level.FACTORED,
        tallies=tallies,
        sections=sections,
        assumptions=assumptions,
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="absolute maximum of a matrix, and of a group in it",
            num_statistics=_num_statistics(tallies),
            enumerated=f"every absmax of a matrix with every absmax of its groups ({far}); every value under every"
            f" stored scale for the 128 matrices of one binade, and for {low} of those in which a factor or a decoded"
            " value may be subnormal",
            sampled=(
                "values under matrices of the other binades, to which multiplying by a power of two leads: 15 values"
                " of every group of every eighth",
                "groups with infinities and NaN",
                "the premises",
            ),
            deep=run.is_deep,
        ),
        notes=tuple(notes),
    )


def compare_codes(run: Run) -> Findings:
    """Compares sides of double-quantized scales: codes over all pairs, scales and values on whole matrices."""
    tallies = start_counting(run.sides)
    total = _compare_matrices(run, tallies)
    enumerate_codes(run.sides, INPUTS[run.dtype], tallies, run.out_dtype, run.progress)
    return Findings(
        level=Level.CONDITIONAL,
        tallies=tallies,
        sections=tuple(finite_section(kind, tallies) for kind in FINITE_SPECIAL),
        assumptions=(),
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="absolute maximum of a group; for scales all of them",
            num_statistics=_num_statistics(tallies),
            enumerated=f"codes of {_ALL_PAIRS}",
            sampled=(f"scales and values: {total:,} values of seeded matrices",),
            deep=run.is_deep,
        ),
        notes=(
            "Scales are quantized around their mean, whose bits depend on all of them and on the order of additions.",
            *((_NO_DEEPER,) if run.is_deep else ()),
        ),
    )


def decode_all(sides: tuple[Side, Side], dtype: torch.dtype, why: str) -> Findings:
    """Compares sides of which one only decodes: every code under every scale."""
    tallies = start_counting(sides)
    num_scales = compare_decoding(sides, dtype, tallies)
    is_exponent = isinstance(sides[0].scheme.scale, ExponentScale)
    kinds = (*FINITE_SPECIAL, BlockKind.NAN)
    return Findings(
        level=Level.DECODE_ONLY,
        tallies=tallies,
        sections=tuple(finite_section(kind, tallies) for kind in kinds if kind in tallies.by_kind),
        assumptions=(),
        domain=Domain(
            dtype=DTYPE_NAMES[dtype],
            statistic="stored scale; the value of an input is a code",
            num_statistics=num_scales,
            enumerated="every code under every scale"
            + ("" if is_exponent else " that a bf16 absmax gives, or every n-th of them"),
            sampled=("encoding: not tried",),
        ),
        notes=(f"Only decoding was compared: {why}",),
    )


def sample(run: Run) -> Findings:
    """Compares sides that share no domain which could be enumerated, on whole matrices."""
    tallies = start_counting(run.sides)
    total = _compare_matrices(run, tallies)
    notes = ["The sides do not share the groups of values that have one scale."]
    if not all(has_staircase(side.scheme) for side in run.sides):
        notes = ["The scales depend on more than the absolute maximum of a group, so inputs were not enumerated."]
    return Findings(
        level=Level.CONDITIONAL,
        tallies=tallies,
        sections=(),
        assumptions=(),
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="whole matrix",
            num_statistics=0,
            enumerated="nothing",
            sampled=(f"{total:,} values of seeded matrices: Gaussian, ties, zero rows, all binades",),
            deep=run.is_deep,
        ),
        notes=(*notes, *((_NO_DEEPER,) if run.is_deep else ())),
    )


def _check(run: Run) -> tuple[Assumption, ...]:
    return tuple(premise for side in run.sides for premise in check_assumptions(side, run.dtype, run.out_dtype))


def _enumerate_bf16(run: Run, tallies: Tallies) -> Level:
    inputs, signs = INPUTS[run.dtype], _signs(run)
    total = inputs.num_ranks * (inputs.num_ranks + 1) * len(signs)
    multiple = ladder_multiple(run.sides[0].scheme)
    blocks = (block for sign in signs for block in ladder_blocks(inputs, is_negative=sign, multiple=multiple))
    enumerate_blocks(run.sides, blocks, total, tallies, run.out_dtype, run.progress)
    return Level.COMPLETE


def _enumerate_steps(run: Run, tallies: Tallies) -> Level:
    """Tries both sides of every step; where asked for and possible, every absmax and every ratio too."""
    inputs = INPUTS[run.dtype]
    a, b = (side.scheme for side in run.sides)
    schemes = (a,) if a.arithmetic_digest == b.arithmetic_digest else (a, b)
    ranks = torch.cat([boundary_statistics(one, inputs) for one in schemes]).unique()
    blocks = boundary_blocks(schemes, ranks, inputs, signs=_signs(run))
    enumerate_blocks(run.sides, blocks, 0, tallies, run.out_dtype, run.progress)
    if not (run.is_deep and isinstance(a.scale, ExponentScale) and isinstance(b.scale, ExponentScale)):
        return Level.BOUNDARY
    for stage, more, total in (
        ("absmax", absmax_blocks(inputs), inputs.num_ranks),
        ("ratios", ratio_blocks(a, inputs), num_ratios(a, inputs)),
    ):
        enumerate_blocks(run.sides, more, total, tallies, run.out_dtype, run.progress, stage=stage)
    return Level.FACTORED


def _compare_order(run: Run, tallies: Tallies) -> tuple[tuple[RuleDifference, ...], tuple[str, ...]]:
    """Tries groups with +a and -a where a sign decides; returns the rule that differs, and what was tried."""
    if not _has_sign(run):
        return (), ()
    inputs, scheme = INPUTS[run.dtype], run.sides[0].scheme
    total = compare_opposed(run.sides, inputs, tallies, run.out_dtype)
    a, b = (find_what_it_takes(side, scheme, inputs, run.out_dtype) for side in run.sides)
    tried = f"groups that hold both +a and -a, every a in both orders, {total:,} values: {_taken(a, b)} decides"
    differ = RuleDifference(field="scale.statistic_tie", a_value=a.value, b_value=b.value)
    return ((differ,) if a is not b else ()), (tried,)


def _taken(a: Takes, b: Takes) -> str:
    return f"the {a.value}" if a is b else f"for one side the {a.value}, for the other the {b.value}"


def _special(run: Run, tallies: Tallies) -> tuple[tuple[BlockSection, ...], list[str]]:
    scheme = run.sides[0].scheme
    sections = [finite_section(kind, tallies) for kind in FINITE_SPECIAL]
    extra, notes = compare_special(run.sides, scheme, run.dtype, run.out_dtype, with_codes=tallies.has_codes)
    sections += extra
    if has_partial_groups(scheme.granularity):
        partial, said = compare_partial(run.sides, run.dtype, run.out_dtype, with_codes=tallies.has_codes)
        sections.append(partial)
        notes = [*notes, *said]
    return tuple(sections), notes


def _compare_matrices(run: Run, tallies: Tallies) -> int:
    run.progress("matrices", 0, 1)
    total = compare_whole(run.sides, sample_matrices(run.sides, run.dtype), tallies, run.out_dtype)
    run.progress("matrices", 1, 1)
    return total


def _has_sign(run: Run) -> bool:
    return any(is_signed(side.scheme) for side in run.sides)


def _signs(run: Run) -> tuple[bool, ...]:
    return (False, True) if _has_sign(run) else (False,)


def _num_statistics(tallies: Tallies) -> int:
    return sum(tally.num_statistics for tally in tallies.by_kind.values())


def _enumerated(level: Level) -> str:
    steps = "both sides of every step of the code, both signs, under statistics where the scale can change"
    factored = "the scale of every finite absmax; the code of every value under the scale 1; "
    return {Level.COMPLETE: _ALL_PAIRS, Level.BOUNDARY: steps, Level.FACTORED: factored + steps}[level]


def _sampled(scheme: Scheme, level: Level) -> tuple[str, ...]:
    sampled = ["groups with infinities and NaN", "the premises"]
    if has_partial_groups(scheme.granularity):
        sampled.append("partial groups at the edge of a matrix")
    if level is Level.BOUNDARY and not isinstance(scheme.scale, ExponentScale):
        sampled.append("statistics: an fp32 scale changes with every one")
    return tuple(sampled)
