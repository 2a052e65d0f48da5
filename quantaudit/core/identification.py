"""What identifying a checkpoint found: the scheme that made every tensor, what its codes alone prove, what else fits.

A scheme *explains* a tensor if it gives every served value from the master, bit for bit. Without a master the codes of
group maxima still exclude scale rules; what they leave open is weighed, and called likely and never proved.
"""

from __future__ import annotations

from enum import StrEnum

from quantaudit.core.comparison import DifferingCounts
from quantaudit.core.scheme import ExponentScale, LinearScale, PerBlock, Scheme
from quantaudit.core.serial import Frozen
from quantaudit.core.verdict import ExitCode


class Standing(StrEnum):
    """How much is known of where a tensor comes from."""

    EXPLAINED = "explained"  # a scheme gives every value
    MISMATCH = "explained by a mismatch"  # a scheme and one named fault give every value
    PARTLY = "partly explained"
    UNKNOWN = "not explained"
    PROVED = "scale rule proved by the codes"  # no master; a single rule can have made these codes
    LIKELY = "scale rule likely from the codes"  # no master; several could have
    UNQUANTIZED = "unquantized"
    NOT_CHECKED = "not checked"


_GOOD = frozenset({Standing.EXPLAINED, Standing.PROVED})
_OPEN = frozenset({Standing.LIKELY, Standing.NOT_CHECKED})


class RuleFields(Frozen):
    """The rules of a scheme in words; empty where one has no meaning for it.

    Attributes:
        element: Number format of the codes.
        granularity: Which values share a scale.
        scale: How the scale is chosen: an exponent rounding, or "linear".
        divisor: What the statistic is divided by.
        statistic: What is measured of a group.
        scale_format: Number format of the stored scale.
        scale_division: "divide" or "reciprocal".
        scale_arithmetic: Precision in which the scale is computed.
        floors: Floors and replacements for small groups.
        encode_with: Whether elements are divided by the stored or by the computed scale.
        division: How elements are divided.
        arithmetic: Precision of that division.
        tie: Where ties go.
        code_range: Integers in use.
    """

    element: str
    granularity: str
    scale: str
    divisor: float
    statistic: str = "absmax"
    scale_format: str
    scale_division: str = ""
    scale_arithmetic: str = ""
    floors: str = ""
    encode_with: str = ""
    division: str = ""
    arithmetic: str = ""
    tie: str
    code_range: str = ""


class Alternative(Frozen):
    """Another scheme, and how far it gets.

    Attributes:
        scheme: Its name.
        differs_in: Fields in which it differs from the scheme found, as "field = value".
        explains: Share of the checked values that it gives.
        num_checked: Values on which it was tried.
    """

    scheme: str
    differs_in: tuple[str, ...]
    explains: float
    num_checked: int


class NamedMismatch(Frozen):
    """A named fault between trainer and server.

    Attributes:
        kind: K1 to K15.
        mismatch: Its name.
        sentence: What happened.
        field: The setting on which the sides disagree.
        train: What the trainer's side does.
        serve: What the server's side does.
        explains: Share of the differing values that it accounts for.
    """

    kind: str
    mismatch: str
    sentence: str
    field: str
    train: str
    serve: str
    explains: float


class RuleEvidence(Frozen):
    """What the codes of group maxima say of one rule.

    Attributes:
        rule: Name of the rule.
        is_possible: Whether it can have made these codes.
        why: What excludes it, or how well the frequencies fit.
        distance: Half the summed difference of observed and expected frequencies, 0 to 1; smaller is better.
        log10_odds: Of the likeliest possible rule against this one, for significands that are log-uniform; `None`
            where the rule is excluded.
    """

    rule: str
    is_possible: bool
    why: str
    distance: float
    log10_odds: float | None = None


class CodeEvidence(Frozen):
    """What a served tensor says by itself.

    Attributes:
        num_groups: Groups that are not all zero.
        histogram: Largest magnitude code of a group (as text) to the number of such groups.
        rules: Rules, the likeliest first.
        facts: What else the codes and scales show, in sentences.
    """

    num_groups: int
    histogram: dict[str, int]
    rules: tuple[RuleEvidence, ...]
    facts: tuple[str, ...] = ()


class TensorIdentification(Frozen):
    """One logical tensor: a dense one, or all routed experts of one layer and role.

    Attributes:
        name: Logical name.
        standing: How much is known.
        shape: Of one matrix.
        num_matrices: Experts, else 1.
        storage: How it is written.
        scheme: The scheme found, or the best one; empty if none was.
        rule: Its rules.
        explains: Share of all values that it gives, after the mismatch if there is one; `None` without a master.
        differing: Scales, codes and values that it does not give.
        alternatives: Schemes that this tensor does not tell apart from it, or that come next.
        mismatch: What explains the rest.
        runner_up: What explains most of it otherwise.
        latent: Mismatches that would change no value here, so that nobody can see them; only where it was asked for.
        evidence: What the codes prove without a master.
        note: What a reader must know besides, in a sentence.
    """

    name: str
    standing: Standing
    shape: tuple[int, ...]
    num_matrices: int = 1
    storage: str = ""
    scheme: str = ""
    rule: RuleFields | None = None
    explains: float | None = None
    differing: DifferingCounts = DifferingCounts()
    alternatives: tuple[Alternative, ...] = ()
    mismatch: NamedMismatch | None = None
    runner_up: NamedMismatch | None = None
    latent: tuple[str, ...] = ()
    evidence: CodeEvidence | None = None
    note: str = ""


class Identification(Frozen):
    """The result of `quantaudit identify SERVED [--master HI]`.

    Attributes:
        served: Path of the served checkpoint.
        master: Path of the masters; empty without.
        tensors: In the order of their names; unquantized ones only where they should not be.
        num_unquantized: Tensors that are plain numbers, as their masters are.
        notes: What a reader must know besides.
    """

    schema_version: int = 1
    kind: str = "identification"
    served: str
    master: str = ""
    tensors: tuple[TensorIdentification, ...]
    num_unquantized: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Returns 0 if everything is explained, 3 if something is not, 4 if nothing could be, or it is only likely."""
        found = {tensor.standing for tensor in self.tensors} - {Standing.UNQUANTIZED}
        if found - _GOOD - _OPEN:
            return ExitCode.REJECTED
        return ExitCode.PASS if found and found <= _GOOD else ExitCode.INCONCLUSIVE


def describe_rule(scheme: Scheme) -> RuleFields:
    """Returns the rules of a scheme in words."""
    rule = scheme.scale
    codes = scheme.code_range
    shared = {
        "element": scheme.element.name,
        "granularity": _granularity(scheme),
        "scale_format": rule.format.name,
        "tie": scheme.tie.value,
        "divisor": rule.divisor,
        "code_range": "" if codes is None else f"{codes.low} to {codes.high}",
    }
    if isinstance(rule, ExponentScale):
        kept = "" if rule.kept_mantissa_bits is None else f", {rule.kept_mantissa_bits} bits kept"
        floors = f"absmax at least {rule.amax_floor:g}" if rule.amax_floor else ""
        return RuleFields.model_validate({**shared, "scale": f"{rule.rounding}{kept}", "floors": floors})
    linear = {
        "scale": "linear" if rule.second_level is None else f"linear, {rule.second_level.kind}",
        "statistic": rule.statistic.value,
        "scale_division": rule.division.value,
        "scale_arithmetic": rule.arithmetic.value,
        "floors": _floors(rule),
        "encode_with": rule.encode_with.value,
        "division": scheme.division.value,
        "arithmetic": scheme.arithmetic.value,
    }
    return RuleFields.model_validate({**shared, **linear})


def _granularity(scheme: Scheme) -> str:
    grain = scheme.granularity
    if isinstance(grain, PerBlock):
        return f"block {grain.rows} x {grain.cols}"
    size = getattr(grain, "size", None)
    return grain.kind if size is None else f"{grain.kind} of {size}"


def _floors(rule: LinearScale) -> str:
    named = {
        "absmax at least": rule.amax_floor,
        "scale at least": rule.scale_floor,
        "a scale of zero becomes": rule.zero_scale,
        "encoded with at least": rule.encode_floor,
    }
    return ", ".join(f"{name} {value:g}" for name, value in named.items() if value)
