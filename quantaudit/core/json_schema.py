"""JSON schemas of what verbs print with `--json`: generated from the types, so that they cannot say anything else.

They describe what is written, not what could be read: every key is there, no other is, and a float that is not finite
is one of three strings. Keys are stable: one is added, renamed or removed only with `schema_version`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from quantaudit.core.certificate import Certificate, Recheck
from quantaudit.core.comparison import Comparison
from quantaudit.core.diff import ReportDiff
from quantaudit.core.identification import Identification
from quantaudit.core.manifest import Manifest
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import Frozen

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NON_FINITE = ["NaN", "Infinity", "-Infinity"]

# File name, without its suffix, to what the verb prints.
PRINTED: Mapping[str, type[Frozen]] = {
    "certify": Certificate,
    "certify-check": Recheck,
    "compare": Comparison,
    "diff": ReportDiff,
    "fingerprint": Manifest,
    "identify": Identification,
    "run": AuditReport,
}


# What the file of a report has besides the report itself.
_REPORT_DIGEST = {
    "description": "sha256 of everything but the run block.",
    "pattern": "^[0-9a-f]{64}$",
    "type": "string",
}


class _StrictSchema(GenerateJsonSchema):
    """Allows the strings that stand for numbers JSON has none for."""

    def float_schema(self, schema: object) -> JsonSchemaValue:
        """Returns the schema of a float."""
        return {"anyOf": [{"type": "number"}, {"enum": NON_FINITE}]}

    def field_is_required(self, field: object, total: bool) -> bool:
        """Says whether a key is always written: all are, but those that a type leaves out under a condition."""
        assert isinstance(field, dict)
        return "serialization_exclude_if" not in field


def write_schema(printed: type[Frozen]) -> str:
    """Returns the JSON schema of what `to_json` of a type writes."""
    schema = printed.model_json_schema(mode="serialization", schema_generator=_StrictSchema)
    if printed is AuditReport:
        schema["properties"]["report_digest"] = _REPORT_DIGEST
        schema["required"].append("report_digest")
    return json.dumps({"$schema": DIALECT, **_brief(schema)}, indent=1, sort_keys=True) + "\n"


def _brief(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Leaves the first sentence of every description, and no titles, which repeat the keys."""
    brief: JsonSchemaValue = {}
    for key, value in schema.items():
        if key == "description" and isinstance(value, str):
            brief[key] = value.splitlines()[0]
        elif key != "title" or not isinstance(value, str):
            brief[key] = _brief(value) if isinstance(value, dict) else value
    return brief


def schemas_folder() -> Path:
    """Returns the folder of the committed schemas."""
    return Path(__file__).resolve().parents[1] / "schemas"
