"""How often these probes have already judged under this contract: whoever looks often enough is admitted by chance.

Counted are the reports in the output folder and in its siblings. A report that is overwritten takes its own count
along, so that repeating an audit into one folder is counted too. Files of others are no errors: what is not a report
of ours is passed over, unread if it is large or not a regular file.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from quantaudit.core.contract import Contract
from quantaudit.core.report import AuditReport

REPORT = "report.json"
_MAX_BYTES = 16 << 20  # reports are a hundredth of that
_MAX_FOLDERS = 10_000
_MAX_COUNT = 1_000_000  # no report was made after so many others


def note_earlier_audits(report: AuditReport, folder: Path) -> AuditReport:
    """Returns the report with the number of audits under its contract and probes that `folder` already holds."""
    contract, probes = report.contract.digest(), report.probes.probes_digest
    found = [count for path in _candidates(folder) if (count := _count_of(path, contract, probes)) is not None]
    earlier = max(len(found), max(found, default=-1) + 1)
    return report.model_copy(update={"run": report.run.model_copy(update={"earlier_audits": earlier})})


def _candidates(folder: Path) -> Iterator[Path]:
    """Yields where a report of the folder or of a sibling would be; each folder once."""
    here = folder.absolute()
    yield here / REPORT
    try:
        with os.scandir(here.parent) as entries:
            for entry in itertools.islice(entries, _MAX_FOLDERS):
                if entry.name != here.name and not entry.name.startswith("."):
                    yield here.parent / entry.name / REPORT
    except OSError:  # a parent that is not there yet, or may not be listed, holds nothing to count
        return


def _count_of(path: Path, contract: str, probes: str) -> int | None:
    """Returns how many audits preceded a stored one of this contract and these probes; `None` if it is another."""
    data = _read(path)
    if data is None or probes.encode() not in data:  # most files of others are never parsed
        return None
    try:
        found = json.loads(data)
        if found["kind"] != "audit" or found["probes"]["probes_digest"] != probes:
            return None
        if Contract.model_validate(found["contract"]).digest() != contract:
            return None
        earlier = found["run"]["earlier_audits"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return earlier if type(earlier) is int and 0 <= earlier <= _MAX_COUNT else 0


def _read(path: Path) -> bytes | None:
    """Returns the bytes of a regular file of moderate size; a pipe or a device is never opened."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        with path.open("rb") as stream:
            return stream.read(_MAX_BYTES + 1)
    except OSError:
        return None
