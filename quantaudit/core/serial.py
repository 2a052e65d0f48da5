"""Strict JSON, canonical bytes and digests of the frozen types in core.

Floats are written so that they round-trip (`repr`); NaN and infinities are tagged strings, never bare
tokens. Canonical bytes are UTF-8 JSON with sorted keys and no spaces: equal values give equal digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import BaseModel, ConfigDict

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"


class Frozen(BaseModel):
    """Base of every serialised type: immutable, unknown keys refused, fields are keyword-only."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Returns the indented strict JSON of this value."""
        return json.dumps(to_strict(self.model_dump(mode="json")), indent=1, sort_keys=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parses what `to_json` wrote.

        Raises:
            ValueError: If the text is not JSON of this type.
        """
        return cls.model_validate_json(text)

    def digest(self) -> str:
        """Returns the sha256 (hex) of the canonical bytes of this value."""
        return digest_of(self.model_dump(mode="json"))


def to_strict(value: object) -> Json:
    """Returns `value` with every non-finite float replaced by "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): to_strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def canonical_bytes(value: object) -> bytes:
    """Returns the bytes that digests are taken of."""
    return json.dumps(to_strict(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(value: object) -> str:
    """Returns the sha256 (hex) of a JSON-like value."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing: a temporary file beside it, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
