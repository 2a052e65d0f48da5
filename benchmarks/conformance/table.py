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
        scheme: Catalogue scheme of the first.
        backend: Backend of the first.
        version: Of that backend's library.
        dtype: Of the weights.
        restated: Whether a rule of either side was re-typed from a description, its code not run.
        num_pairs: Values compared.
        identical: Whether nothing that is compared differs: scales, codes and values.
        differing: Numbers of scales, codes and values that differ; +0 equals -0 among values, not among codes.
        shares: The same as shares.
        note: What a reader must know: other groups, decoding only.
    """

    a: str
    b: str
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
    NO_INTERVAL = "no interval"  # one scale for the whole tensor is one draw
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
        found: Share found here; `None` where a side is not installed.
        half_width: Of the 99 % interval of the difference of both shares.
        agreement: Whether the difference is inside.
        remark: Which of the two is right where they differ, or why there is no interval.
    """

    table: str
    a: str
    b: str
    dtype: str
    part: Part
    published: float
    found: float | None
    half_width: float | None
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
        pairs: Every quantizer of a library against its scheme.
        mxfp4: MXFP4 quantizers against each other.
        published: Figures published for these versions.
        unchecked: What was not checked.
    """

    schema_version: int = 1
    command: str
    seed: int
    rows: int
    columns: int
    data_digest: str
    versions: dict[str, str]
    pairs: tuple[Pair, ...]
    mxfp4: tuple[Pair, ...]
    published: tuple[Comparison, ...]
    unchecked: tuple[Unchecked, ...]

    def compared(self, agreement: Agreement) -> tuple[Comparison, ...]:
        """Returns the published figures that came to this."""
        return tuple(row for row in self.published if row.agreement is agreement)

    def unsettled(self) -> tuple[Comparison, ...]:
        """Returns the published figures that differ without an explanation."""
        return tuple(row for row in self.compared(Agreement.DIFFERS) if row.remark == UNSETTLED)
