"""What is reported: one row a pair of quantizers and a dtype, and one row a published figure."""

from __future__ import annotations

from enum import StrEnum

from quantaudit.core.serial import Frozen

UNSETTLED = "not settled which is right"  # remark of a figure that nobody has looked into


class Part(StrEnum):
    """What of two results is compared."""

    SCALES = "scales"
    CODES = "codes"
    VALUES = "values"


class Counts(Frozen):
    """How many differ; `None` where the two do not store that part in the same form."""

    scales: int | None
    codes: int | None
    values: int


class Shares(Frozen):
    """Which share differs, from 0 to 1; `None` as in `Counts`."""

    scales: float | None
    codes: float | None
    values: float


class Pair(Frozen):
    """Two quantizers on the same weights.

    Attributes:
        a: "backend:quantizer", or a scheme of the catalogue.
        b: What it is held against.
        family: Element format and groups of the first.
        scheme: Catalogue scheme of the first.
        backend: Backend of the first.
        version: Of that backend's library.
        dtype: Of the weights.
        restated: Whether a rule of either side was re-typed from a description, its code not run.
        num_pairs: Values compared.
        identical: Whether nothing that is compared differs: scales, codes and values.
        differing: Numbers of scales, codes and values that differ; +0 equals -0 among values, not among codes.
        shares: The same as shares.
        note: What a reader must know: decoding only.
    """

    a: str
    b: str
    family: str
    scheme: str
    backend: str
    version: str
    dtype: str
    restated: bool
    num_pairs: int
    identical: bool
    differing: Counts
    shares: Shares
    note: str


class Agreement(StrEnum):
    """Whether a published figure is met."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_CHECKED = "not checked"


class Comparison(Frozen):
    """One published figure and what was found.

    Attributes:
        table: Which of the published tables.
        a: First side.
        b: Second side.
        dtype: Of the weights.
        part: What is counted.
        published: Published share.
        found: Share found here, pooled over the draws; the median where a draw has one scale. `None` if not checked.
        low: Lower end of the 99 % interval in which the published share is expected.
        high: Its upper end.
        num_draws: Draws of the weights that it comes from.
        agreement: Whether the published share is inside.
        remark: Which of the two is right where they differ, and what else is known.
    """

    table: str
    a: str
    b: str
    dtype: str
    part: Part
    published: float
    found: float | None
    low: float | None
    high: float | None
    num_draws: int
    agreement: Agreement
    remark: str


class Unchecked(Frozen):
    """A library or quantizer that was not checked, and why."""

    name: str
    reason: str


class Conformance(Frozen):
    """The whole report.

    Attributes:
        command: What makes it again.
        seed: Of the weights.
        rows: Of the weights.
        columns: Of the weights.
        data_digest: sha256 of the fp32 weights.
        versions: Of everything that numbers may depend on.
        caveats: Of libraries in a version that was not tested.
        pairs: Every quantizer of a library against its scheme.
        mutual: Quantizers of a family against each other: schemes against libraries, and libraries against libraries.
        published: Figures published for these versions.
        unchecked: What was not checked.
    """

    schema_version: int = 2
    command: str
    seed: int
    rows: int
    columns: int
    data_digest: str
    versions: dict[str, str]
    caveats: tuple[str, ...] = ()
    pairs: tuple[Pair, ...]
    mutual: tuple[Pair, ...]
    published: tuple[Comparison, ...]
    unchecked: tuple[Unchecked, ...]

    def compared(self, agreement: Agreement) -> tuple[Comparison, ...]:
        """Returns the published figures that came to this."""
        return tuple(row for row in self.published if row.agreement is agreement)

    def unsettled(self) -> tuple[Comparison, ...]:
        """Returns the published figures that differ without an explanation."""
        return tuple(row for row in self.compared(Agreement.DIFFERS) if row.remark == UNSETTLED)
