"""Writes the JSON schema of every verb's `--json`, and of the conformance report, into `quantaudit/schemas/`.

    python -m benchmarks.schemas

A test compares the committed files with what this would write, and validates real outputs against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.conformance.table import Conformance
from quantaudit.core.json_schema import PRINTED, schemas_folder, write_schema
from quantaudit.core.serial import Frozen, write_atomically

TYPES: Mapping[str, type[Frozen]] = {**PRINTED, "conformance": Conformance}


def path_of(name: str) -> Path:
    """Returns where the schema of a verb or report lies."""
    return schemas_folder() / f"{name}.schema.json"


def main() -> None:
    """Writes all schemas."""
    for name, printed in TYPES.items():
        write_atomically(path_of(name), write_schema(printed).encode())
        print(path_of(name).relative_to(Path.cwd()) if path_of(name).is_relative_to(Path.cwd()) else path_of(name))


if __name__ == "__main__":
    main()
