"""A report as it is stored: its JSON with its own digest at the root, so that an edit shows.

The digest covers everything but the `run` block and itself. It is no signature: whoever changes a report on purpose can
write a new one. It finds files that were edited, merged or cut, and names which of two reports somebody talks about.
"""

from __future__ import annotations

import json

from quantaudit.core.report import AuditReport
from quantaudit.core.serial import digest_of, to_strict

DIGEST_KEY = "report_digest"
_HEAD = ("schema_version", "kind")
_OUTSIDE = frozenset({DIGEST_KEY, "run"})


def to_stored_json(report: AuditReport) -> str:
    """Returns the indented JSON of a report, its digest beside its schema version."""
    value = report.model_dump(mode="json")
    head = {key: value.pop(key) for key in _HEAD}
    whole = {**head, DIGEST_KEY: report.report_digest(), **value}
    return json.dumps(to_strict(whole), indent=1, allow_nan=False) + "\n"


def digest_of_stored(value: dict[str, object]) -> str:
    """Returns the digest of a stored report as parsed, whatever digest it claims.

    It is taken of what the file says and not of what this release makes of it, so a field that a later release adds
    does not change the digest of an older file.
    """
    return digest_of({key: part for key, part in value.items() if key not in _OUTSIDE})
