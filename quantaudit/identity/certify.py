"""`certify`: whether two quantizers are one function, by trying every input where that can be done.

Read it top to bottom: open both sides, choose the level, enumerate or sample, try special blocks, test the premises,
find the rule that differs, and conclude. What is not proved is never called identical.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantaudit.core.certificate import (
    Assumption,
    BlockKind,
    BlockSection,
    Certificate,
    CertifiedPair,
    Conclusion,
    Counterexample,
    Domain,
    Level,
    RuleDifference,
    SideRecord,
)
from quantaudit.core.errors import InputError, MissingLibraryError, NotMeasuredError
from quantaudit.core.scheme import ExponentScale, Scheme
from quantaudit.identity.assumptions import check_assumptions
from quantaudit.identity.decoding import can_decode, compare_decoding
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import INPUTS, ladder_blocks
from quantaudit.identity.enumeration import Progress, enumerate_blocks
from quantaudit.identity.environment import describe_environment
from quantaudit.identity.fast_reference import has_staircase
from quantaudit.identity.monotonic import check_monotonic
from quantaudit.identity.observe import is_signed, run_groups
from quantaudit.identity.rule import can_be_matched, explain, find_scheme, see
from quantaudit.identity.sides import Side, open_sides
from quantaudit.identity.special_blocks import compare_special
from quantaudit.identity.structured_groups import dominated_groups
from quantaudit.identity.treads import boundary_blocks, boundary_statistics
from quantaudit.identity.whole_tensors import compare_whole, sample_matrices

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Kinds whose statistics are finite, hence in the enumeration.
_FINITE_SPECIAL = (BlockKind.ZERO, BlockKind.SUBNORMAL, BlockKind.SATURATING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What comparing found, before it is concluded from."""

    level: Level
    tallies: Tallies
    sections: tuple[BlockSection, ...]
    assumptions: tuple[Assumption, ...]
    domain: Domain
    notes: tuple[str, ...]


def certify(
    a: str,
    b: str,
    *,
    dtype: str = "bf16",
    like: str | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Certificate:
    """Compares two quantizers as functions.

    Args:
        a: A catalogue scheme, `backend:scheme`, or `module:callable`.
        b: The same.
        dtype: "bf16" (every pair is tried) or "fp32" (both sides of every step).
        like: Scheme whose groups a callable quantizes; that of the other side when `None`.
        threads: CPU threads.
        progress: Told (stage, done, total).

    Raises:
        InputError: If a name or setting is wrong, or a callable does not behave.
        MissingLibraryError: If a library is not installed.
    """
    if dtype not in DTYPES:
        raise InputError(f"the dtype {dtype!r}", expected=" or ".join(DTYPES), fix="correct --dtype")
    sides = open_sides(a, b, like)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            pair = _certify_pair(sides, DTYPES[dtype], progress or _silent)
    finally:
        torch.set_num_threads(before)
    return Certificate(pairs=(pair,))


def _certify_pair(sides: tuple[Side, Side], dtype: torch.dtype, progress: Progress) -> CertifiedPair:
    _check_dtypes(sides, dtype)
    findings, out_dtype = _find(sides, dtype, progress)
    progress("rule", 0, 1)
    first = _first_counterexample(findings)
    matches, rules, notes = _find_rules(sides, out_dtype, findings)
    progress("rule", 1, 1)
    conclusion = _conclude(findings, sides)
    return CertifiedPair(
        a=sides[0].name,
        b=sides[1].name,
        level=findings.level,
        num_pairs=sum(tally.num_pairs for tally in findings.tallies.by_kind.values())
        + sum(section.num_pairs for section in findings.sections if section.kind not in findings.tallies.by_kind),
        identical=conclusion is Conclusion.IDENTICAL,
        special_blocks=conclusion,
        differing=findings.tallies.differing(BlockKind.ORDINARY),
        counterexample=first,
        rule=rules[0] if rules else None,
        rules=rules,
        sections=findings.sections,
        assumptions=findings.assumptions,
        domain=findings.domain,
        sides=(_record(sides[0], matches[0]), _record(sides[1], matches[1])),
        notes=(*findings.notes, *notes),
        environment=describe_environment(sides),
    )


def _find(sides: tuple[Side, Side], dtype: torch.dtype, progress: Progress) -> tuple[_Findings, torch.dtype]:
    """Compares at the highest level that the sides allow; returns the dtype of decoded values too."""
    try:
        out_dtype = _probe(sides, dtype)
    except MissingLibraryError:
        raise
    except NotMeasuredError as error:  # a side that does not quantize may still decode
        if not can_decode(sides):
            raise
        return _compare_decoding(sides, dtype, str(error)), dtype
    if _share_a_domain(sides):
        return _enumerate(sides, dtype, out_dtype, progress), out_dtype
    return _sample(sides, dtype, out_dtype, progress), out_dtype


def _check_dtypes(sides: tuple[Side, Side], dtype: torch.dtype) -> None:
    for side in sides:
        if dtype not in side.dtypes:
            takes = " or ".join(_DTYPE_NAMES.get(d, str(d)) for d in side.dtypes)
            raise InputError(
                f"{_DTYPE_NAMES[dtype]} inputs for {side.name}",
                expected=takes or "a quantizer: it only decodes",
                fix=f"add --dtype {takes.split(' ')[0]}" if takes else "choose another side",
            )


def _probe(sides: tuple[Side, Side], dtype: torch.dtype) -> torch.dtype:
    """Runs both sides on a few groups: callables are checked, and the dtype of decoded values is found."""
    found = []
    for side in sides:
        groups_GN = dominated_groups(side.scheme, dtype).groups_GN
        if side.user is not None:
            side.user.check_repeats(groups_GN)
        values_GN = run_groups(side, groups_GN, side.scheme, dtype).values_GN
        found.append(values_GN.dtype)
    # A catalogue scheme decodes to any dtype, so it follows the side that does not.
    return next((d for side, d in zip(sides, found, strict=True) if not side.is_scheme), dtype)


def _share_a_domain(sides: tuple[Side, Side]) -> bool:
    """Returns whether (statistic, value) pairs of the same groups determine both sides."""
    a, b = (side.scheme for side in sides)
    grains = [scheme.granularity.model_dump() for scheme in (a, b)]
    for grain in grains:
        if grain["kind"] == "token":  # a row, as a channel is
            grain["kind"] = "channel"
    return grains[0] == grains[1] and has_staircase(a) and has_staircase(b)


def _enumerate(sides: tuple[Side, Side], dtype: torch.dtype, out_dtype: torch.dtype, progress: Progress) -> _Findings:
    scheme, inputs = sides[0].scheme, INPUTS[dtype]
    tallies = _new_tallies(sides)
    has_sign = any(is_signed(side.scheme) for side in sides)
    signs = (False, True) if has_sign else (False,)
    assumptions = [premise for side in sides for premise in check_assumptions(side, dtype, out_dtype)]
    if dtype is torch.bfloat16:
        total = inputs.num_ranks * (inputs.num_ranks + 1) * len(signs)
        blocks = (block for sign in signs for block in ladder_blocks(inputs, is_negative=sign))
        level = Level.COMPLETE
    else:
        schemes = tuple(side.scheme for side in sides)
        chosen = schemes[:1] if schemes[0].arithmetic_digest == schemes[1].arithmetic_digest else schemes
        ranks = torch.cat([boundary_statistics(one, inputs) for one in chosen]).unique()
        blocks = (block for block in boundary_blocks(chosen, ranks, inputs, signs=signs))
        total = 0
        level = Level.BOUNDARY
        assumptions += [check_monotonic(side, dtype, out_dtype) for side in sides if not side.has_stairs]
    enumerate_blocks(sides, blocks, total, tallies, out_dtype, progress)
    sections = [_finite_section(kind, tallies) for kind in _FINITE_SPECIAL]
    extra, notes = compare_special(sides, scheme, dtype, out_dtype, with_codes=tallies.has_codes)
    return _Findings(
        level=level,
        tallies=tallies,
        sections=(*sections, *extra),
        assumptions=tuple(assumptions),
        domain=_domain(level, scheme, dtype, tallies, has_sign=has_sign),
        notes=tuple(notes),
    )


def _sample(sides: tuple[Side, Side], dtype: torch.dtype, out_dtype: torch.dtype, progress: Progress) -> _Findings:
    tallies = _new_tallies(sides)
    progress("matrices", 0, 1)
    total = compare_whole(sides, sample_matrices(sides, dtype), tallies, out_dtype)
    progress("matrices", 1, 1)
    return _Findings(
        level=Level.CONDITIONAL,
        tallies=tallies,
        sections=(),
        assumptions=(),
        domain=Domain(
            dtype=_DTYPE_NAMES[dtype],
            statistic="whole matrix",
            num_statistics=0,
            enumerated="nothing",
            sampled=(f"{total:,} values of seeded matrices: Gaussian, ties, zero rows, all binades",),
        ),
        notes=("The scales depend on more than the absolute maximum of a group, so inputs cannot be enumerated.",)
        if not all(has_staircase(side.scheme) for side in sides)
        else ("The sides do not share the groups of values that have one scale.",),
    )


def _compare_decoding(sides: tuple[Side, Side], dtype: torch.dtype, why: str) -> _Findings:
    tallies = _new_tallies(sides)
    num_scales = compare_decoding(sides, dtype, tallies)
    kinds = (*_FINITE_SPECIAL, BlockKind.NAN)
    return _Findings(
        level=Level.DECODE_ONLY,
        tallies=tallies,
        sections=tuple(_finite_section(kind, tallies) for kind in kinds if kind in tallies.by_kind),
        assumptions=(),
        domain=Domain(
            dtype=_DTYPE_NAMES[dtype],
            statistic="stored scale; the value of an input is a code",
            num_statistics=num_scales,
            enumerated="every code under every scale" + _of_absmax(sides[0].scheme),
            sampled=("encoding: not tried",),
        ),
        notes=(f"Only decoding was compared: {why}",),
    )


def _of_absmax(scheme: Scheme) -> str:
    return "" if isinstance(scheme.scale, ExponentScale) else " that a bf16 absmax gives, or every n-th of them"


def _new_tallies(sides: tuple[Side, Side]) -> Tallies:
    elements = [side.scheme.element.model_copy(update={"name": ""}) for side in sides]
    return Tallies(largest=sides[0].scheme.element.max, has_codes=elements[0] == elements[1])


def _finite_section(kind: BlockKind, tallies: Tallies) -> BlockSection:
    tally = tallies.of(kind)
    return BlockSection(
        kind=kind, num_pairs=tally.num_pairs, differing=tallies.differing(kind), counterexample=tally.first
    )


def _domain(level: Level, scheme: Scheme, dtype: torch.dtype, tallies: Tallies, *, has_sign: bool) -> Domain:
    statistic = "signed value of largest magnitude" if has_sign else "absolute maximum of a group"
    count = sum(tally.num_statistics for tally in tallies.by_kind.values())
    sampled = ["groups with infinities and NaN", "the premises", "partial groups at the edge of a matrix: not tried"]
    if has_sign:
        sampled.append("groups that hold both +a and -a where the statistic is not first: not tried")
    enumerated = "every finite statistic with every value of at most its magnitude, both signs, both zeros"
    if level is Level.BOUNDARY:
        enumerated = "both sides of every step of the code, both signs, under statistics where the scale can change"
        if not isinstance(scheme.scale, ExponentScale):
            sampled.append("statistics: an fp32 scale changes with every one")
    return Domain(
        dtype=_DTYPE_NAMES[dtype],
        statistic=statistic,
        num_statistics=count,
        enumerated=enumerated,
        sampled=tuple(sampled),
    )


def _first_counterexample(findings: _Findings) -> Counterexample | None:
    """Returns the first difference in value, of an ordinary block if there is one, else any difference."""
    found = [findings.tallies.of(BlockKind.ORDINARY).first, *(s.counterexample for s in findings.sections)]
    known = [example for example in found if example is not None]
    return next((example for example in known if example.part == "values"), known[0] if known else None)


def _find_rules(
    sides: tuple[Side, Side], out_dtype: torch.dtype, findings: _Findings
) -> tuple[tuple[str, str], tuple[RuleDifference, ...], tuple[str, ...]]:
    """Returns the scheme that each side matches, the fields that separate them, and sentences."""
    a, b = (side.scheme for side in sides)
    known = (a.name if sides[0].is_scheme else "", b.name if sides[1].is_scheme else "")
    if _first_counterexample(findings) is None:
        return known, (), ()
    if findings.level is Level.DECODE_ONLY:
        return known, _special_rules(findings.sections), ()
    if findings.level is Level.CONDITIONAL or not (can_be_matched(a) and can_be_matched(b)):
        # Of a side that is not read only the groups are known; its other fields are a claim.
        stated = explain(a, b, None)
        are_read = all(side.is_scheme for side in sides)
        return known, tuple(rule for rule in stated if are_read or rule.field == "granularity"), ()
    ranks = _rank_of(findings.tallies.of(BlockKind.ORDINARY).first)
    seen = [see(side, out_dtype, ranks) for side in sides]
    found = [find_scheme(side, s) for side, s in zip(sides, seen, strict=True)]
    names = ("" if found[0] is None else found[0].name, "" if found[1] is None else found[1].name)
    if found[0] is None or found[1] is None:
        unknown = " and ".join(side.name for side, scheme in zip(sides, found, strict=True) if scheme is None)
        return names, (), (f"No scheme within two changes gives what {unknown} gives.",)
    rules = explain(found[0], found[1], seen[1])
    return names, rules or _special_rules(findings.sections), ()


def _special_rules(sections: tuple[BlockSection, ...]) -> tuple[RuleDifference, ...]:
    """Names the special blocks in which two sides of one rule part."""
    return tuple(
        RuleDifference(
            field=f"special blocks: {section.kind.value}",
            a_value=f"{example.value.value!r} becomes {example.a_value.value!r}",
            b_value=f"{example.value.value!r} becomes {example.b_value.value!r}",
        )
        for section in sections
        if section.differing.values and (example := section.counterexample) is not None
    )


def _rank_of(first: Counterexample | None) -> tuple[int, ...]:
    """Returns the bf16 rank of the statistic of a counterexample, if there is one."""
    if first is None:
        return ()
    bits = int(first.statistic.bits, 16)
    return ((bits if len(first.statistic.bits) == len("0x0000") else bits >> 16) & 0x7FFF,)


def _conclude(findings: _Findings, sides: tuple[Side, Side]) -> Conclusion:
    ordinary = findings.tallies.of(BlockKind.ORDINARY)
    if ordinary.values:
        return Conclusion.DIFFERENT
    if any(section.differing.values for section in findings.sections):
        return Conclusion.EXCEPT_SPECIAL
    a, b = sides
    is_one_record = a.is_scheme and b.is_scheme and a.scheme.arithmetic_digest == b.scheme.arithmetic_digest
    if is_one_record:
        return Conclusion.IDENTICAL
    is_sampled = findings.level in (Level.CONDITIONAL, Level.DECODE_ONLY) or (
        findings.level is Level.BOUNDARY
        and not (isinstance(a.scheme.scale, ExponentScale) and (a.has_stairs or b.has_stairs))
    )
    holds = all(assumption.holds for assumption in findings.assumptions)
    return Conclusion.NOT_PROVED if is_sampled or not holds else Conclusion.IDENTICAL


def _record(side: Side, matches: str) -> SideRecord:
    return SideRecord(
        name=side.name,
        origin=side.origin.value,
        version=side.version,
        source=side.source,
        path=side.path,
        scheme=side.scheme.name,
        arithmetic_digest=side.scheme.arithmetic_digest,
        matches=matches,
        departs=side.departs,
    )


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
