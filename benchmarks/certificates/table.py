"""What is kept of a certificate: a row that says what was tried, what it came to, and where the two part first."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.certificates.cells import Cell, Made
from quantaudit.core.certificate import CertifiedPair, Conclusion, Counterexample, Differing, Level, RuleDifference
from quantaudit.core.serial import Frozen
from quantaudit.identity.findings import UNPROVED


class Special(Frozen):
    """One kind of special block in which something differs."""

    kind: str
    num_pairs: int
    differing: Differing


class Row(Frozen):
    """One certificate.

    Attributes:
        quantizer: "backend:name", or "fused:scheme" for this package's compiled code.
        version: Of what ran.
        origin: Whose arithmetic it is; "restated" never stands for the library.
        scheme: Scheme of the catalogue that it is held against, the first side of the certificate.
        dtype: Of the inputs.
        deep: Whether the slow part was asked for.
        level: How far the enumeration reaches.
        num_pairs: Inputs compared.
        conclusion: What it came to.
        unproved: Whether equal ordinary blocks are not proved equal: a part was sampled, or a premise does not hold.
        differing: Counts over ordinary blocks.
        special: Kinds of special blocks in which something differs.
        rules: Fields that separate the two, the scheme's value first.
        matches: Scheme whose results equal the quantizer's on what was searched; empty if none does.
        first: First input on which they part.
        failed: Premises that do not hold.
        enumerated: What was tried without exception.
        sampled: What was tried by example.
        seconds: Of the processor.
        threads: It ran on.
    """

    quantizer: str
    version: str
    origin: str
    scheme: str
    dtype: str
    deep: bool
    level: Level
    num_pairs: int
    conclusion: Conclusion
    unproved: bool
    differing: Differing
    special: tuple[Special, ...]
    rules: tuple[RuleDifference, ...]
    matches: str
    first: Counterexample | None
    failed: tuple[str, ...]
    enumerated: str
    sampled: tuple[str, ...]
    seconds: float
    threads: int


class Missing(Frozen):
    """A certificate that is not there, and why."""

    quantizer: str
    scheme: str
    dtype: str
    reason: str


class Certificates(Frozen):
    """The table.

    Attributes:
        command: What fills it.
        versions: Of everything that ran.
        machine: Processor and system.
        rows: Certificates.
        missing: What could be certified and was not.
    """

    schema_version: int = 1
    command: str
    versions: dict[str, str]
    machine: str
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]


def make_row(made: Made) -> Row:
    """Returns what is kept of a certificate."""
    (pair,) = made.certificate.pairs
    side = pair.sides[1]
    return Row(
        quantizer=pair.b,
        version=side.version,
        origin=side.origin,
        scheme=pair.a,
        dtype=pair.domain.dtype,
        deep=pair.domain.deep,
        level=pair.level,
        num_pairs=pair.num_pairs,
        conclusion=pair.special_blocks,
        unproved=pair.special_blocks is Conclusion.NOT_PROVED or UNPROVED in pair.notes,
        differing=pair.differing,
        special=_special(pair),
        rules=pair.rules,
        matches=side.matches,
        first=pair.counterexample,
        failed=tuple(f"{a.side}: {a.name}" for a in pair.assumptions if not a.holds),
        enumerated=pair.domain.enumerated,
        sampled=pair.domain.sampled,
        seconds=made.spent.seconds,
        threads=made.spent.threads,
    )


def describe_versions(all_made: Iterable[Made]) -> dict[str, str]:
    """Returns the versions that certificates name, libraries in alphabetical order after what they run on."""
    base: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for made in all_made:
        where = made.certificate.pairs[0].environment
        base.update(python=where.python, quantaudit=where.quantaudit, torch=where.torch)
        libraries.update(where.libraries)
    return {**base, **dict(sorted(libraries.items()))}


def describe_machine(all_made: Iterable[Made]) -> str:
    """Returns the machines that certificates name."""
    found = {
        f"{where.machine}, {where.cpu_capability}" for where in (m.certificate.pairs[0].environment for m in all_made)
    }
    return "; ".join(sorted(found))


def missing(cell: Cell, reason: str) -> Missing:
    """Returns the row of a cell without a certificate."""
    return Missing(quantizer=cell.quantizer, scheme=cell.scheme, dtype=cell.dtype, reason=reason)


def _special(pair: CertifiedPair) -> tuple[Special, ...]:
    return tuple(
        Special(kind=s.kind.value, num_pairs=s.num_pairs, differing=s.differing)
        for s in pair.sections
        if s.differing.values or s.differing.codes or s.differing.scales
    )
