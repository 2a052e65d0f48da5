"""The realised-precision map as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from quantaudit.api import PrecisionMap


def print_precision(precision: PrecisionMap) -> None:
    """Prints what is declared, what is stored, and where they differ."""
    console = Console(highlight=False)
    console.print(f"declared: {precision.declared or 'no quantization'}")
    table = Table("layer", "matrix", "packed", "bf16", "fp32", "missing", "bits/weight", box=None, pad_edge=False)
    for row in precision.rows:
        counts = (row.num_packed, row.num_bfloat16, row.num_float32, row.num_missing)
        table.add_row(str(row.layer), row.role.value, *map(str, counts), f"{row.bits_per_weight:.2f}")
    console.print(table)
    console.print(
        f"{precision.num_packed:,} of {precision.num_matrices:,} expert matrices are packed; "
        f"{precision.bits_per_weight:.2f} bits a weight"
    )
    for finding in precision.findings:
        console.print(f"finding: {finding}", soft_wrap=True)
