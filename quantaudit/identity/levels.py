"""The levels of a certificate, one function each: what is enumerated, what is sampled, and how that is said.

* `enumerate_all`: `complete` for bf16, every statistic with every value; for fp32 `boundary`, both sides of every step
  of the code. On demand every absmax too, with every ratio for power-of-two scales, which makes it `factored`, or with
  the steps under every statistic that is a case of its own for linear ones.
* `factor`: `factored`, for scales of two levels.
* `step_two_levels`: `boundary`, the same in fp32: both sides of every step of the scale and of the code.
* `compare_codes`: `conditional`, for double-quantized scales: codes complete, the rest on whole matrices.
* `decode_all`: `decode only`, every code under every scale.
* `sample`: `conditional`, whole matrices and nothing else.
"""

from __future__ import annotations

import torch

from quantaudit.core.certificate import Assumption, BlockKind, BlockSection, Domain, Level, RuleDifference
from quantaudit.core.scheme import ExponentScale, Scheme
from quantaudit.identity.assumptions import check_assumptions
from quantaudit.identity.decoding import compare_decoding
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import INPUTS, ladder_blocks
from quantaudit.identity.double_quantized import enumerate_codes
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.equivariant import check_equivariant
from quantaudit.identity.expert_stacks import EXPERTS
from quantaudit.identity.fast_reference import has_staircase
from quantaudit.identity.findings import FINITE_SPECIAL, Findings, finite_section, start_counting
from quantaudit.identity.laying import ladder_multiple
from quantaudit.identity.monotonic import check_monotonic
from quantaudit.identity.opposed_groups import Takes, compare_opposed, find_what_it_takes
from quantaudit.identity.partial_groups import compare_partial, has_partial_groups
from quantaudit.identity.reach import Reach, enumerate_steps
from quantaudit.identity.run import Run
from quantaudit.identity.sides import Side
from quantaudit.identity.special_blocks import compare_special
from quantaudit.identity.two_level import enumerate_factored, enumerate_scale_steps
from quantaudit.identity.whole_tensors import compare_whole, sample_matrices

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
_ALL_PAIRS = "every finite statistic with every value of at most its magnitude, both signs, both zeros"
_NO_DEEPER = "There is nothing deeper to try for these sides: --deep changed nothing."


def enumerate_all(run: Run) -> Findings:
    """Compares sides of one domain of (statistic, value) pairs: all of them in bf16, the steps in fp32."""
    tallies = start_counting(run.sides)
    scheme, assumptions = run.sides[0].scheme, _check(run)
    reach = _enumerate_bf16(run, tallies) if run.dtype is torch.bfloat16 else enumerate_steps(run, tallies)
    assumptions += _check_more(run, reach)
    rules, sampled = _compare_order(run, tallies)
    sections, notes = _special(run, tallies)
    return Findings(
        level=reach.level,
        tallies=tallies,
        sections=sections,
        assumptions=assumptions,
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="signed value of largest magnitude" if run.has_sign else "absolute maximum of a group",
            num_statistics=_num_statistics(tallies),
            enumerated=reach.enumerated,
            sampled=(*_sampled(scheme), *reach.sampled, *sampled, *_no_stacks(run, assumptions)),
            deep=run.is_deep,
        ),
        notes=(*notes, *((_NO_DEEPER,) if run.is_deep and not reach.is_deeper else ())),
        rules=rules,
        steps_through=reach.steps_through,
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
                *_no_stacks(run, assumptions),
            ),
            deep=run.is_deep,
        ),
        notes=tuple(notes),
    )


def step_two_levels(run: Run) -> Findings:
    """Compares sides of two-level scales in fp32, where scales and codes change, in some matrices of every binade."""
    tallies = start_counting(run.sides)
    assumptions = _check(run)
    total = enumerate_scale_steps(run.sides, INPUTS[run.dtype], tallies, run.out_dtype, run.progress)
    sections, notes = _special(run, tallies)
    return Findings(
        level=Level.BOUNDARY,
        tallies=tallies,
        sections=sections,
        assumptions=assumptions,
        domain=Domain(
            dtype=DTYPE_NAMES[run.dtype],
            statistic="absolute maximum of a matrix, and of a group in it",
            num_statistics=_num_statistics(tallies),
            enumerated="both sides of every step of the stored scale of a group, and of the code under each of those,"
            " both signs, in the matrices that were tried",
            sampled=(
                f"matrices: {total}, some in every binade; an fp32 scale of the matrix changes with every absmax",
                "groups with infinities and NaN",
                "the premises",
                *_no_stacks(run, assumptions),
            ),
            deep=run.is_deep,
        ),
        notes=(*notes, *((_NO_DEEPER,) if run.is_deep else ())),
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


def _check_more(run: Run, reach: Reach) -> tuple[Assumption, ...]:
    """Tests what makes an enumeration of steps a proof."""
    if reach.level is Level.COMPLETE:
        return ()
    unread = [side for side in run.sides if not side.has_stairs]
    found = [check_monotonic(side, run.dtype, run.out_dtype) for side in unread]
    if reach.steps_through:
        found += [check_equivariant(side, run.dtype, run.out_dtype) for side in unread]
    return tuple(found)


def _no_stacks(run: Run, assumptions: tuple[Assumption, ...]) -> tuple[str, ...]:
    """Says which sides take no stacks of experts, of which nothing is known then."""
    taken = {assumption.side for assumption in assumptions if assumption.name == EXPERTS}
    names = [side.name for side in run.sides if not side.has_stairs and side.name not in taken]
    return (f"stacks of experts: not tried, {' and '.join(names)} takes matrices",) if names else ()


def _enumerate_bf16(run: Run, tallies: Tallies) -> Reach:
    inputs, signs = INPUTS[run.dtype], run.signs
    total = inputs.num_ranks * (inputs.num_ranks + 1) * len(signs)
    multiple = ladder_multiple(run.sides[0].scheme)
    blocks = (block for sign in signs for block in ladder_blocks(inputs, is_negative=sign, multiple=multiple))
    enumerate_blocks(run.sides, blocks, total, tallies, run.out_dtype, run.progress)
    return Reach(Level.COMPLETE, _ALL_PAIRS)


def _compare_order(run: Run, tallies: Tallies) -> tuple[tuple[RuleDifference, ...], tuple[str, ...]]:
    """Tries groups with +a and -a where a sign decides; returns the rule that differs, and what was tried."""
    if not run.has_sign:
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


def _num_statistics(tallies: Tallies) -> int:
    return sum(tally.num_statistics for tally in tallies.by_kind.values())


def _sampled(scheme: Scheme) -> tuple[str, ...]:
    partial = ("partial groups at the edge of a matrix",) if has_partial_groups(scheme.granularity) else ()
    return ("groups with infinities and NaN", "the premises", *partial)
