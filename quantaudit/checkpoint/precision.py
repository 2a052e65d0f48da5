"""The realised-precision map: which routed experts really are stored in low precision, from the headers alone.

Whether a matrix is quantized is decided by the tensors that are there, never by the configuration; where the two
disagree, that is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from quantaudit.checkpoint.config_json import CheckpointConfig, read_config
from quantaudit.checkpoint.declared import Declared, PackedFormat
from quantaudit.checkpoint.header import DType
from quantaudit.checkpoint.index import TensorIndex, read_index
from quantaudit.checkpoint.layout import check_shapes
from quantaudit.checkpoint.names import ExpertStack, Part, Role, expert_shape, expert_stacks, parse_expert
from quantaudit.checkpoint.storage import Storage, classify, entries_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.serial import Frozen
from quantaudit.model.config import ModelConfig


class PrecisionRow(Frozen):
    """The experts of one layer and role.

    Attributes:
        layer: 0-based.
        role: w1 gate, w2 down, w3 up.
        num_packed: Experts stored as codes and scales.
        num_bfloat16: Experts stored in bf16.
        num_float32: Experts stored in fp32.
        num_missing: Experts that are not stored.
        bits_per_weight: Stored bits, scales included, per weight of the experts that are there; 0 if none is.
    """

    layer: int
    role: Role
    num_packed: int
    num_bfloat16: int
    num_float32: int
    num_missing: int
    bits_per_weight: float

    @property
    def num_experts(self) -> int:
        """Returns the number of experts that should be there."""
        return self.num_packed + self.num_bfloat16 + self.num_float32 + self.num_missing


class PrecisionMap(Frozen):
    """What a checkpoint declares and what it is.

    Attributes:
        declared: Format that the configuration declares; `None` if it declares no quantization.
        declares_activations: Whether it declares quantized activations (nothing stored can confirm that).
        rows: One a layer and role, in layer order.
        findings: Sentences, one for each way in which the tensors differ from the declaration.
    """

    schema_version: int = 1
    declared: PackedFormat | None
    declares_activations: bool
    rows: tuple[PrecisionRow, ...]
    findings: tuple[str, ...]

    @property
    def as_declared(self) -> bool:
        """Tells whether the tensors are what the configuration says."""
        return not self.findings

    @property
    def num_matrices(self) -> int:
        """Returns the number of expert matrices that should be there."""
        return sum(row.num_experts for row in self.rows)

    @property
    def num_packed(self) -> int:
        """Returns the number of expert matrices stored as codes and scales."""
        return sum(row.num_packed for row in self.rows)

    @property
    def num_missing(self) -> int:
        """Returns the number of expert matrices that are not there."""
        return sum(row.num_missing for row in self.rows)

    @property
    def bits_per_weight(self) -> float:
        """Returns the stored bits per expert weight over all experts that are there; 0 if none is."""
        # The three matrices of an expert have equally many weights.
        counts = [row.num_experts - row.num_missing for row in self.rows]
        total = sum(row.bits_per_weight * n for row, n in zip(self.rows, counts, strict=True))
        return total / sum(counts) if any(counts) else 0.0


def inspect_checkpoint(folder: Path) -> PrecisionMap:
    """Maps the precision of a checkpoint folder; reads configuration and headers, no tensor.

    Raises:
        InputError: If a file is damaged or missing, a tensor has another shape or dtype than the configuration says,
            or an expert is stored by halves or twice. Missing experts are findings.
    """
    index = read_index(folder)
    config = read_config(folder)
    check_shapes(index, config.model, config.declared)
    return map_precision(index, config)


def map_precision(index: TensorIndex, config: CheckpointConfig) -> PrecisionMap:
    """Maps the precision of an index under a configuration, shapes and dtypes having been checked.

    Raises:
        InputError: If an expert is stored by halves or twice.
    """
    rows = tuple(_row(index, config.model, layer, role) for layer, role in expert_stacks(config.model))
    declared = config.declared
    findings = (*_expert_findings(rows, declared), *_outside_findings(index))
    return PrecisionMap(
        declared=None if declared is None else declared.format,
        declares_activations=declared is not None and declared.has_activations,
        rows=rows,
        findings=findings,
    )


def _row(index: TensorIndex, config: ModelConfig, layer: int, role: Role) -> PrecisionRow:
    stored = [entries_of(index, layer, expert, role) for expert in range(config.num_experts)]
    counts = Counter(classify(entries) for entries in stored)
    num_stored = config.num_experts - counts[Storage.MISSING]
    dtypes = Counter(entries[Part.WEIGHT].dtype for entries in stored if Part.WEIGHT in entries)
    num_bits = 8 * sum(entry.num_bytes for entries in stored for entry in entries.values())
    rows, cols = expert_shape(config, role)
    return PrecisionRow(
        layer=layer,
        role=role,
        num_packed=counts[Storage.PACKED],
        num_bfloat16=dtypes[DType.BF16],
        num_float32=dtypes[DType.F32],
        num_missing=counts[Storage.MISSING],
        bits_per_weight=num_bits / (num_stored * rows * cols) if num_stored else 0.0,
    )


def _expert_findings(rows: tuple[PrecisionRow, ...], declared: Declared | None) -> Iterator[str]:
    total = sum(row.num_experts for row in rows)
    missing = sum(row.num_missing for row in rows)
    covered = [row for row in rows if declared is not None and declared.covers(ExpertStack(row.layer, row.role))]
    stored = sum(row.num_experts - row.num_missing for row in covered)
    packed = sum(row.num_packed for row in covered)
    undeclared = sum(row.num_packed for row in rows) - packed
    wide = sum(row.num_float32 for row in rows)
    if missing:
        yield f"{missing} of {total} expert matrices are missing."
    if declared is not None and packed < stored:
        yield (
            f"The configuration declares {declared.format}, but {stored - packed} of {stored} expert matrices are "
            "stored unquantized."
        )
    if undeclared:
        what = "no quantization" if declared is None else f"{declared.format} for other experts only"
        yield (
            f"The configuration declares {what}, but {undeclared} of {total - missing} expert matrices are stored "
            "packed."
        )
    if wide:
        yield f"{wide} of {total - missing} expert matrices are stored in fp32; the layout has bf16."


def _outside_findings(index: TensorIndex) -> Iterator[str]:
    outside = [name for name in index.tensors if name.endswith(f".{Part.PACKED}") and parse_expert(name) is None]
    if outside:
        yield f"{len(outside)} tensors outside the routed experts are stored packed, first {shown(outside[0])}."
