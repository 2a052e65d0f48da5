"""Shards: what single workers fingerprinted, as data and as JSON. Standard library only.

A shard has one entry for every box that a worker holds of a tensor: where the box lies, and its leaves. Leaves of
disjoint boxes add up (`merge`), so no weight has to be moved.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from quantaudit.core.errors import InputError

ALGORITHM = "product-keys-1"  # that of `core.manifest`, which needs pydantic
KIND = "manifest-shard"
_LEAF = re.compile(r"[0-9a-f]{32}")

Place: TypeAlias = "tuple[int, int, int]"  # expert, row, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One box of one tensor.

    Attributes:
        name: Logical name of the tensor.
        shape: Shape of the whole tensor.
        storage: How it is written.
        is_stack: Whether these are routed experts.
        first: Expert, row and column at which the box begins.
        size: Experts, rows and columns of the box.
        values: Leaf of its decoded values, 32 hex digits.
        bytes: Leaf of its stored bytes.
        experts: Leaf of the values of every expert of the box; empty if left out.
    """

    name: str
    shape: tuple[int, ...]
    storage: str
    is_stack: bool
    first: Place
    size: Place
    values: str
    bytes: str
    experts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        leaves = (self.values, self.bytes, *self.experts)
        if not all(_LEAF.fullmatch(leaf) for leaf in leaves) or not len(self.first) == len(self.size) == 3:
            raise ValueError(f"{self.name}: leaves have 32 hex digits and boxes three axes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one worker holds.

    Attributes:
        worker: Who it is, for messages, such as "rank 3".
        weight_version: Which weights it loaded; `None` if nobody counts.
        decoded_to: "bfloat16" or "float32", the dtype that packed codes were decoded to.
        entries: Its boxes.
    """

    worker: str
    weight_version: int | None
    decoded_to: str
    entries: tuple[Entry, ...]

    def to_json(self) -> str:
        """Returns the strict JSON of this shard."""
        head = {"kind": KIND, "schema_version": 1, "algorithm": ALGORITHM}
        return json.dumps(head | asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Shard:
        """Parses what `to_json` wrote.

        Raises:
            InputError: If it is something else, or was made in another way than this version makes it.
        """
        try:
            found = json.loads(text)
            head = (found.pop("kind"), found.pop("schema_version"), found.pop("algorithm"))
            if head != (KIND, 1, ALGORITHM):
                raise ValueError(f"made as {head}")
            return cls(entries=tuple(_parse_entry(entry) for entry in found.pop("entries")), **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"a shard that cannot be read ({error})",
                expected=f"a {KIND} of schema 1, made by the algorithm {ALGORITHM!r}",
                fix="export it again, with one version of quantaudit in all workers",
            ) from None


def _parse_entry(record: dict[str, Any]) -> Entry:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    return Entry(**fields)


def write_whole(path: Path, text: str) -> None:
    """Writes a shard or a manifest so that a reader finds all of it or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
