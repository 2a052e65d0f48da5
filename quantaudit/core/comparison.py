"""What comparing two checkpoints found: every tensor in one class, the first difference in bits, and what explains it.

Values come before bytes: two encodings of one value are no difference unless the bytes themselves were asked about.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from pydantic import AliasChoices, ConfigDict, Field

from quantaudit.core.certificate import Number
from quantaudit.core.serial import Frozen
from quantaudit.core.verdict import ExitCode


class Encoding(StrEnum):
    """How the numbers of a stored tensor are written."""

    PLAIN = "plain"  # floating-point numbers, one after the other
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    FP8 = "fp8"
    INT2 = "int2"
    INT3 = "int3"
    INT4 = "int4"
    INT8 = "int8"
    INTEGERS = "integers"  # a table of indices, a mask: no weight
    UNKNOWN = "unknown layout"  # read as bytes and as nothing else


class TensorClass(StrEnum):
    """What a pair of tensors comes to, from best to worst."""

    BYTE_EQUAL = "byte-equal"
    VALUE_EQUAL = "value-equal, another encoding"
    QUANTIZATION = "one is the quantization of the other"
    WITHIN_ULPS = "equal within ulps"
    NOT_CHECKED = "not checked"
    DIFFERENT_VALUES = "different values"
    DIFFERENT_CODES = "different codes"
    DIFFERENT_SCALES = "different scales"
    DIFFERENT_SHAPE = "different shape"
    LAYER_SET = "different layer set"
    NON_FINITE = "non-finite"

    @property
    def rank(self) -> int:
        """Returns the place in the order from best to worst; a stack has the class of its worst matrix."""
        return list(TensorClass).index(self)


EQUAL = frozenset({TensorClass.BYTE_EQUAL, TensorClass.VALUE_EQUAL})


class Mode(StrEnum):
    """What counts as a difference."""

    VALUES = "values"
    BYTES = "bytes"


class DifferingCounts(Frozen):
    """How many scales, codes and decoded values differ; `None` where the two sides do not both have that part."""

    scales: int | None = None
    codes: int | None = None
    values: int | None = None


class FirstDifference(Frozen):
    """The first place at which two tensors part.

    Attributes:
        part: "values", "scales", "codes" or "bytes".
        expert: 0-based; `None` outside routed experts.
        coordinate: 0-based indices in the logical tensor, [out, in] for a matrix.
        group: 0-based position of the group along the input axis; `None` where nothing is grouped.
        a: Number of the first side, with its bits.
        b: Number of the second.
        a_code: Code of the first side, where both have codes of one format.
        b_code: Code of the second.
        a_scale: Scale of the first side, where both have scales.
        b_scale: Scale of the second.
    """

    part: str
    expert: int | None
    coordinate: tuple[int, ...]
    group: int | None = None
    a: Number
    b: Number
    a_code: int | None = None
    b_code: int | None = None
    a_scale: Number | None = None
    b_scale: Number | None = None


class TensorComparison(Frozen):
    """One logical tensor: a dense one, or all routed experts of one layer and role.

    Attributes:
        name: Logical name, the same for every layout.
        tensor_class: What the pair comes to; "class" in JSON.
        shape: Of one matrix, [out, in]; of the whole tensor outside the experts.
        num_matrices: Matrices compared: the experts, else 1.
        num_different: Matrices that are neither byte-equal nor value-equal.
        a_encoding: How the first side writes it; empty if it is not there.
        b_encoding: How the second does.
        differing: Totals over the matrices.
        max_ulps: Largest distance in units of the coarser stored format; `None` where it was not taken.
        first: First difference.
        note: What a reader must know besides, in one sentence.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    name: str
    tensor_class: TensorClass = Field(
        validation_alias=AliasChoices("class", "tensor_class"), serialization_alias="class"
    )
    shape: tuple[int, ...]
    num_matrices: int
    num_different: int
    a_encoding: str
    b_encoding: str
    differing: DifferingCounts
    max_ulps: int | None = None
    first: FirstDifference | None = None
    note: str = ""


class Diagnosis(Frozen):
    """One rule or mismatch that explains tensors.

    Attributes:
        kind: "rule" for a scheme that makes the packed side from the plain one, or for rules of two number formats;
            else a kind of mismatch, K1 to K15.
        mismatch: Name of the scheme or mismatch.
        field: What differs; empty for a rule that was merely found.
        train: What the first side does.
        serve: What the second side does.
        explains: Least fraction of any of these tensors that it accounts for: of the values for a scheme, of what
            differs for a mismatch; 0 where codes alone point to it.
        tensors: Logical names.
    """

    kind: str
    mismatch: str
    field: str
    train: str
    serve: str
    explains: float
    tensors: tuple[str, ...]


class SideInfo(Frozen):
    """One side: where it lies, what it is, and how many logical tensors and stored bytes it has."""

    path: str
    kind: str
    num_tensors: int
    num_bytes: int


class Comparison(Frozen):
    """The result of `quantaudit compare A B`.

    Attributes:
        mode: Whether values or bytes decide.
        identical: Whether everything is on both sides, was checked, and is equal.
        a: First side.
        b: Second side.
        counts: Number of tensors of every class that occurs.
        only_a: Logical names that the second side lacks.
        only_b: Logical names that the first side lacks.
        tensors: In the order of their names.
        diagnosis: What explains differences.
        notes: What a reader must know besides.
    """

    schema_version: int = 1
    kind: str = "comparison"
    mode: Mode
    identical: bool
    a: SideInfo
    b: SideInfo
    counts: dict[TensorClass, int]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    tensors: tuple[TensorComparison, ...]
    diagnosis: tuple[Diagnosis, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> dict[str, TensorClass]:
        """Returns the class of every tensor by name."""
        return {tensor.name: tensor.tensor_class for tensor in self.tensors}

    @property
    def exit_code(self) -> ExitCode:
        """Returns 0 for equal, 3 for any difference, 4 if all that was checked is equal but something was not."""
        if self.identical:
            return ExitCode.PASS
        unequal = {tensor.tensor_class for tensor in self.tensors if not is_equal(tensor.tensor_class, self.mode)}
        return ExitCode.INCONCLUSIVE if unequal == {TensorClass.NOT_CHECKED} else ExitCode.REJECTED


def is_equal(found: TensorClass, mode: Mode) -> bool:
    """Tells whether a class counts as equal: equal bytes always, another encoding unless bytes decide."""
    return found is TensorClass.BYTE_EQUAL or (mode is Mode.VALUES and found in EQUAL)


def count_classes(tensors: tuple[TensorComparison, ...]) -> dict[TensorClass, int]:
    """Returns how many tensors are in every class that occurs, best first."""
    counts = Counter(tensor.tensor_class for tensor in tensors)
    return {found: counts[found] for found in TensorClass if counts[found]}
