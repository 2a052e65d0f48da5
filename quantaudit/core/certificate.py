"""A certificate: what was found when two quantizers were compared as functions, small enough to commit.

It states the domain, what was enumerated and what was only sampled, the assumptions that turn the enumeration into a
proof, how many inputs differ, the first of them in bits, and the rule that separates the two. It holds for the device,
flags, thread count and versions that it names.
"""

from __future__ import annotations

from enum import StrEnum

from quantaudit.core.serial import Frozen
from quantaudit.core.verdict import ExitCode


class Level(StrEnum):
    """How far the enumeration reaches."""

    COMPLETE = "complete"  # every (statistic, value) pair of the input dtype
    FACTORED = "factored"  # every statistic with its scale, and every value under every scale, one after the other
    BOUNDARY = "boundary"  # every statistic and value at which the code can change, and their neighbours
    DECODE_ONLY = "decode only"  # every code under every scale; encoding sampled
    CONDITIONAL = "conditional"  # sampled on whole tensors: the result depends on more than one number


class Conclusion(StrEnum):
    """What a pair comes to."""

    IDENTICAL = "identical"
    EXCEPT_SPECIAL = "identical except special blocks"
    DIFFERENT = "different"
    NOT_PROVED = "no difference found, not proved"


class BlockKind(StrEnum):
    """Groups of values on which libraries leave their own rule."""

    ORDINARY = "ordinary"
    ZERO = "zero"  # every value is +0 or -0
    SUBNORMAL = "subnormal"  # the scale, or the smallest element times the scale, is no normal number
    SATURATING = "saturating"  # absmax is in the last binade: a scale rounded up may decode to infinity
    INFINITE = "infinite"
    NAN = "not a number"
    PARTIAL = "partial"  # cut off at the edge of a matrix


class Number(Frozen):
    """A number and its bits, so that two that print alike can be told apart."""

    value: float
    bits: str


class Differing(Frozen):
    """How many inputs differ; `None` where one side does not show that part.

    Attributes:
        scales: Statistics whose stored scales differ, as numbers.
        codes: Pairs whose codes differ.
        values: Pairs whose decoded values differ; +0 equals -0, and NaN equals NaN.
    """

    scales: int | None
    codes: int | None
    values: int


class Counterexample(Frozen):
    """One input on which the sides part.

    Attributes:
        part: "values" if any value differs, else "codes" or "scales".
        statistic: Absolute maximum of the group (signed, where the sign matters).
        value: The value that is quantized in that group.
        a_scale: Stored scale of the first side, as a number.
        b_scale: Of the second.
        a_code: Code of the first side.
        b_code: Of the second.
        a_value: Decoded value of the first side.
        b_value: Of the second.
        matrix_absmax: Absolute maximum of the whole matrix, where the scale depends on that too.
    """

    part: str
    statistic: Number
    value: Number
    a_scale: Number | None
    b_scale: Number | None
    a_code: int | None
    b_code: int | None
    a_value: Number
    b_value: Number
    matrix_absmax: Number | None = None


class BlockSection(Frozen):
    """One kind of special block: how many inputs, how many differ, and the first.

    Attributes:
        kind: Which blocks.
        num_pairs: Inputs compared.
        differing: How many of them differ.
        zero_signs: Inputs that decode to zeros of different sign, which is no difference in value.
        counterexample: The first that differs.
        a_refuses: Whether the first side refuses such input.
        b_refuses: Whether the second does.
    """

    kind: BlockKind
    num_pairs: int
    differing: Differing
    zero_signs: int = 0
    counterexample: Counterexample | None = None
    a_refuses: bool = False
    b_refuses: bool = False


class Assumption(Frozen):
    """A premise of the proof, tested on structured inputs.

    Attributes:
        side: Name of the side.
        name: Short name.
        statement: What must hold.
        holds: Whether it did.
        num_checked: Values looked at.
        found: Where it failed, in words and bits.
    """

    side: str
    name: str
    statement: str
    holds: bool
    num_checked: int
    found: str | None = None


class RuleDifference(Frozen):
    """The field of the arithmetic that separates the two sides."""

    field: str
    a_value: str
    b_value: str


class SideRecord(Frozen):
    """One side as it was run.

    Attributes:
        name: As it was asked for.
        origin: "catalogue", "library", "restated" or "user".
        version: Of what was run.
        source: What was called, or where the arithmetic is specified.
        path: How its results were computed.
        scheme: Catalogue scheme that it is, claims to be, or was compared as.
        arithmetic_digest: Digest of that scheme; of a library it says what the library is held against.
        matches: Scheme whose results equal this side's on the searched pairs; empty if none does.
        departs: Departures that are known beforehand.
    """

    name: str
    origin: str
    version: str
    source: str
    path: str
    scheme: str
    arithmetic_digest: str
    matches: str
    departs: tuple[str, ...] = ()


class Domain(Frozen):
    """What was enumerated, and what was only sampled.

    Attributes:
        dtype: Of the inputs.
        statistic: What of a group decides its scale.
        num_statistics: How many were tried.
        enumerated: What was tried without exception.
        sampled: What was tried by example, or not at all.
        deep: Whether the slow part was asked for.
    """

    dtype: str
    statistic: str
    num_statistics: int
    enumerated: str
    sampled: tuple[str, ...]
    deep: bool = False


class Environment(Frozen):
    """What the certificate holds for."""

    quantaudit: str
    python: str
    torch: str
    libraries: dict[str, str]
    device: str
    machine: str
    cpu_capability: str
    threads: int
    compiler_flags: dict[str, str]


class CertifiedPair(Frozen):
    """Two quantizers compared over one domain.

    Attributes:
        a: Name of the first side.
        b: Name of the second.
        level: How far the enumeration reaches.
        num_pairs: Inputs compared, special blocks included.
        identical: Whether every value is equal, in special blocks too, and that is proved.
        special_blocks: `identical`, `identical except special blocks`, `different`, or that nothing is proved.
        differing: Counts over ordinary blocks.
        zero_signs: Inputs of ordinary blocks that decode to zeros of different sign, which is no difference in value.
        counterexample: First input that differs, ordinary blocks before special ones.
        rule: Field that separates the sides, if one was found.
        rules: All fields that do.
        sections: The special blocks, kind by kind.
        assumptions: Premises with what testing them showed.
        domain: What was enumerated.
        sides: Both sides as run.
        notes: What a reader must know besides.
        environment: What this holds for.
    """

    a: str
    b: str
    level: Level
    num_pairs: int
    identical: bool
    special_blocks: Conclusion
    differing: Differing
    zero_signs: int
    counterexample: Counterexample | None
    rule: RuleDifference | None
    rules: tuple[RuleDifference, ...]
    sections: tuple[BlockSection, ...]
    assumptions: tuple[Assumption, ...]
    domain: Domain
    sides: tuple[SideRecord, SideRecord]
    notes: tuple[str, ...]
    environment: Environment


class Certificate(Frozen):
    """The file that `certify` writes and `certify --check` runs again."""

    schema_version: int = 1
    kind: str = "certificate"
    pairs: tuple[CertifiedPair, ...]

    @property
    def identical(self) -> bool:
        """Returns whether every pair is proved identical in value."""
        return all(pair.identical for pair in self.pairs)

    @property
    def conclusion(self) -> Conclusion:
        """Returns the worst conclusion of the pairs."""
        found = {pair.special_blocks for pair in self.pairs}
        order = (Conclusion.DIFFERENT, Conclusion.EXCEPT_SPECIAL, Conclusion.NOT_PROVED)
        return next((c for c in order if c in found), Conclusion.IDENTICAL)

    @property
    def exit_code(self) -> ExitCode:
        """Returns 0 for identical in value, 3 for a difference in any block, 4 where nothing is proved."""
        if self.conclusion is Conclusion.IDENTICAL:
            return ExitCode.PASS
        return ExitCode.INCONCLUSIVE if self.conclusion is Conclusion.NOT_PROVED else ExitCode.REJECTED


class Recheck(Frozen):
    """A certificate, made again.

    Attributes:
        holds: Whether everything but the environment is as it was.
        changes: What is not, field by field.
        environment: In which ways this environment is another.
        certificate: What was found now.
    """

    schema_version: int = 1
    kind: str = "recheck"
    holds: bool
    changes: tuple[str, ...]
    environment: tuple[str, ...]
    certificate: Certificate

    @property
    def exit_code(self) -> ExitCode:
        """Returns the code of what was found now, but 3 where a certificate of identity no longer holds."""
        code = self.certificate.exit_code
        return ExitCode.REJECTED if code is ExitCode.PASS and not self.holds else code
