"""What comparing two sides found, and what it comes to: what is not proved is never called identical."""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.certificate import (
    Assumption,
    BlockKind,
    BlockSection,
    Conclusion,
    Counterexample,
    Domain,
    Level,
    RuleDifference,
)
from quantaudit.core.format import CodebookFormat, FloatFormat
from quantaudit.core.scheme import ExponentScale, LinearScale, Scheme, TwoLevel
from quantaudit.identity.differences import Tallies
from quantaudit.identity.sides import Side

# Kinds whose statistics are finite, hence in the enumeration.
FINITE_SPECIAL = (BlockKind.ZERO, BlockKind.SUBNORMAL, BlockKind.SATURATING)
UNPROVED = "That ordinary blocks are the same is not proved: a part was sampled, or a premise does not hold."


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What comparing found, before it is concluded from.

    Attributes:
        level: How far the enumeration reached.
        tallies: Counts.
        sections: Special blocks.
        assumptions: The premises with what testing them showed.
        domain: What was tried.
        notes: Sentences.
        rules: Rules that were found to differ by other means than matching schemes.
        steps_through: Whether every statistic was tried that a power of two does not lead to from another.
    """

    level: Level
    tallies: Tallies
    sections: tuple[BlockSection, ...]
    assumptions: tuple[Assumption, ...]
    domain: Domain
    notes: tuple[str, ...]
    rules: tuple[RuleDifference, ...] = ()
    steps_through: bool = False

    @property
    def num_pairs(self) -> int:
        """Inputs compared, special blocks included."""
        counted = sum(tally.num_pairs for tally in self.tallies.by_kind.values())
        return counted + sum(s.num_pairs for s in self.sections if s.kind not in self.tallies.by_kind)

    @property
    def first(self) -> Counterexample | None:
        """The first difference in value, of an ordinary block if there is one, else any difference."""
        found = [self.tallies.of(BlockKind.ORDINARY).first, *(s.counterexample for s in self.sections)]
        known = [example for example in found if example is not None]
        return next((example for example in known if example.part == "values"), known[0] if known else None)


def start_counting(sides: tuple[Side, Side]) -> Tallies:
    """Returns empty counts that know which blocks are special for these sides."""
    elements = [side.scheme.element.model_copy(update={"name": ""}) for side in sides]
    return Tallies(
        largest=max(_full_scale(side.scheme) for side in sides),
        smallest=min(_smallest(side.scheme) for side in sides),
        has_codes=elements[0] == elements[1],
    )


def finite_section(kind: BlockKind, tallies: Tallies) -> BlockSection:
    """Returns the section of one kind of block that the enumeration met."""
    tally = tallies.of(kind)
    return BlockSection(
        kind=kind,
        num_pairs=tally.num_pairs,
        differing=tallies.differing(kind),
        zero_signs=tally.zero_signs,
        counterexample=tally.first,
    )


def conclude(findings: Findings, sides: tuple[Side, Side]) -> Conclusion:
    """Returns what the findings come to."""
    if findings.tallies.of(BlockKind.ORDINARY).values:
        return Conclusion.DIFFERENT
    if any(section.differing.values for section in findings.sections):
        return Conclusion.EXCEPT_SPECIAL
    a, b = sides
    if a.is_scheme and b.is_scheme and a.scheme.arithmetic_digest == b.scheme.arithmetic_digest:
        return Conclusion.IDENTICAL
    return Conclusion.IDENTICAL if is_proof(findings, sides) else Conclusion.NOT_PROVED


def is_proof(findings: Findings, sides: tuple[Side, Side]) -> bool:
    """Returns whether what was tried and found equal, with the premises that were tested, leaves nothing open."""
    if not all(assumption.holds for assumption in findings.assumptions):
        return False
    if findings.level is Level.BOUNDARY:
        # The steps of one side must be known, and its scale constant between statistics, or all of them tried.
        is_known = any(side.has_stairs for side in sides)
        return is_known and (findings.steps_through or isinstance(sides[0].scheme.scale, ExponentScale))
    return findings.level in (Level.COMPLETE, Level.FACTORED)


def special_rules(sections: tuple[BlockSection, ...]) -> tuple[RuleDifference, ...]:
    """Names the special blocks in which two sides of one rule part."""
    return tuple(
        RuleDifference(field=f"special blocks: {section.kind.value}", a_value=a_value, b_value=b_value)
        for section in sections
        if section.differing.values
        for a_value, b_value in [_describe(section)]
    )


def _describe(section: BlockSection) -> tuple[str, str]:
    """Returns what becomes of the first input that differs, on both sides."""
    example = section.counterexample
    if example is None:
        a, b = ("refused" if refuses else "quantized" for refuses in (section.a_refuses, section.b_refuses))
        return a, b
    given = repr(example.value.value)
    return f"{given} becomes {example.a_value.value!r}", f"{given} becomes {example.b_value.value!r}"


def _full_scale(scheme: Scheme) -> float:
    """Returns what absmax is divided by for the scale, or the largest element where that is more."""
    rule = scheme.scale
    if isinstance(rule, LinearScale) and isinstance(rule.second_level, TwoLevel):
        return rule.second_level.divisor
    return max(scheme.element.max, abs(rule.divisor))


def _smallest(scheme: Scheme) -> float:
    """Returns the smallest positive element, times the smallest scale where another lies above it."""
    element, rule = scheme.element, scheme.scale
    smallest = 1.0
    if isinstance(element, FloatFormat):
        smallest = element.smallest_positive
    elif isinstance(element, CodebookFormat):
        smallest = min(abs(value) for value in element.table if value)
    if isinstance(rule, LinearScale) and isinstance(rule.second_level, TwoLevel):
        return smallest * rule.scale_floor
    return smallest
