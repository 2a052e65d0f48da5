"""`certify`: whether two quantizers are one function, by trying every input where that can be done.

Read it top to bottom: open both sides, choose the level, enumerate or sample, try special blocks, test the premises,
find the rule that differs, and conclude. What is not proved is never called identical.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from quantaudit.core.certificate import BlockKind, Certificate, CertifiedPair, Conclusion, SideRecord
from quantaudit.core.errors import InputError, MissingLibraryError, NotMeasuredError
from quantaudit.identity.decoding import can_decode
from quantaudit.identity.double_quantized import is_double
from quantaudit.identity.enumeration import Progress
from quantaudit.identity.environment import describe_environment
from quantaudit.identity.fast_reference import has_staircase, is_two_level
from quantaudit.identity.findings import UNPROVED, Findings, conclude, is_proof
from quantaudit.identity.levels import (
    DTYPE_NAMES,
    compare_codes,
    decode_all,
    enumerate_all,
    factor,
    sample,
    step_two_levels,
)
from quantaudit.identity.observe import run_groups
from quantaudit.identity.run import Run
from quantaudit.identity.separating import find_rules
from quantaudit.identity.sides import Side, open_sides
from quantaudit.identity.structured_groups import dominated_groups

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def certify(
    a: str,
    b: str,
    *,
    dtype: str = "bf16",
    like: str | None = None,
    deep: bool = False,
    threads: int = 1,
    progress: Progress | None = None,
) -> Certificate:
    """Compares two quantizers as functions.

    Args:
        a: A catalogue scheme, `backend:scheme`, or `module:callable`.
        b: The same.
        dtype: "bf16" (every pair is tried) or "fp32" (both sides of every step).
        like: Scheme whose groups a callable quantizes; that of the other side when `None`.
        deep: Whether to try what takes minutes to hours too: in fp32 every absmax, with every ratio of power-of-two
            scales or every step of linear ones, in bf16 all groups of two-level scales.
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
            pair = _certify_pair(sides, DTYPES[dtype], progress or _silent, is_deep=deep)
    finally:
        torch.set_num_threads(before)
    return Certificate(pairs=(pair,))


def _certify_pair(sides: tuple[Side, Side], dtype: torch.dtype, progress: Progress, *, is_deep: bool) -> CertifiedPair:
    _check_dtypes(sides, dtype)
    findings, out_dtype = _find(sides, dtype, progress, is_deep=is_deep)
    progress("rule", 0, 1)
    matches, rules, notes = find_rules(sides, out_dtype, findings)
    progress("rule", 1, 1)
    conclusion = conclude(findings, sides)
    ordinary = findings.tallies.of(BlockKind.ORDINARY)
    return CertifiedPair(
        a=sides[0].name,
        b=sides[1].name,
        level=findings.level,
        num_pairs=findings.num_pairs,
        identical=conclusion is Conclusion.IDENTICAL,
        special_blocks=conclusion,
        differing=findings.tallies.differing(BlockKind.ORDINARY),
        zero_signs=ordinary.zero_signs,
        counterexample=findings.first,
        rule=rules[0] if rules else None,
        rules=rules,
        sections=findings.sections,
        assumptions=findings.assumptions,
        domain=findings.domain,
        sides=(_record(sides[0], matches[0]), _record(sides[1], matches[1])),
        notes=(
            *(f"{side.caveat}." for side in sides if side.caveat),
            *findings.notes,
            *notes,
            *((UNPROVED,) if conclusion is Conclusion.EXCEPT_SPECIAL and not is_proof(findings, sides) else ()),
        ),
        environment=describe_environment(sides),
    )


def _find(
    sides: tuple[Side, Side], dtype: torch.dtype, progress: Progress, *, is_deep: bool
) -> tuple[Findings, torch.dtype]:
    """Compares at the highest level that the sides allow; returns the dtype of decoded values too."""
    try:
        out_dtype = _probe(sides, dtype)
    except MissingLibraryError:
        raise
    except NotMeasuredError as error:  # a side that does not quantize may still decode
        if not can_decode(sides):
            raise
        return decode_all(sides, dtype, str(error)), dtype
    run = Run(sides=sides, dtype=dtype, out_dtype=out_dtype, is_deep=is_deep, progress=progress)
    return _choose_level(run)(run), out_dtype


def _choose_level(run: Run) -> Callable[[Run], Findings]:
    schemes = [side.scheme for side in run.sides]
    if not _share_groups(run.sides):
        return sample
    if all(has_staircase(scheme) for scheme in schemes):
        return enumerate_all
    if all(is_two_level(scheme) for scheme in schemes):
        return factor if run.dtype is torch.bfloat16 else step_two_levels
    if run.dtype is torch.bfloat16 and all(is_double(scheme) for scheme in schemes):
        return compare_codes
    return sample


def _check_dtypes(sides: tuple[Side, Side], dtype: torch.dtype) -> None:
    for side in sides:
        if dtype not in side.dtypes:
            takes = " or ".join(DTYPE_NAMES.get(d, str(d)) for d in side.dtypes)
            raise InputError(
                f"{DTYPE_NAMES[dtype]} inputs for {side.name}",
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


def _share_groups(sides: tuple[Side, Side]) -> bool:
    """Returns whether the same values of a matrix share a scale on both sides."""
    grains = [side.scheme.granularity.model_dump() for side in sides]
    for grain in grains:
        if grain["kind"] == "token":  # a row, as a channel is
            grain["kind"] = "channel"
    return grains[0] == grains[1]


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
