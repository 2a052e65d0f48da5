"""Reads a stored report as untrusted input: bounded in size and depth, one schema version, its own digest intact.

A file without a digest is refused too: taking the key out would otherwise undo the check, and no release ever wrote
reports without one.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from quantaudit.core.errors import InputError
from quantaudit.core.report import SCHEMA_VERSION, AuditReport
from quantaudit.reporting.stored import DIGEST_KEY, digest_of_stored

MAX_BYTES = 64 * 1024 * 1024


def read_report(path: Path) -> AuditReport:
    """Reads what `write_reports` wrote.

    Args:
        path: A `report.json`.

    Raises:
        InputError: If the file cannot be read, is too large or nested too deeply, is not JSON, has another schema
            version, is not an audit report, or is not what its digest says.
    """
    data = _read_bounded(path)
    value = _check_version(path, _parse(path, _decode(path, data)))
    claimed = value.pop(DIGEST_KEY, None)
    try:
        report = AuditReport.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise _wrong(path, _first_fault(error)) from error
    _check_digest(path, claimed, value)
    return report


def _read_bounded(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise _unreadable(path, "no such file") from error
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from error
    if len(data) > MAX_BYTES:
        raise _wrong(path, f"it is larger than {MAX_BYTES // 2**20} MiB")
    return data


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(path, f"byte {error.start} is not UTF-8") from error


def _parse(path: Path, text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _wrong(path, "it is nested too deeply") from error
    except ValueError as error:
        raise _wrong(path, f"it is not strict JSON ({error})") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"a bare {name}")


def _check_version(path: Path, value: object) -> dict[str, object]:
    if not isinstance(value, dict) or value.get("kind") != "audit":
        raise _wrong(path, "it is not an audit report")
    version = value.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version}, newer than this release of quantaudit reads",
            expected=f"schema version {SCHEMA_VERSION}",
            fix="update quantaudit, or read the report with the release that wrote it",
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version!r}",
            expected=f"schema version {SCHEMA_VERSION}",
            fix="read it with the release of quantaudit that wrote it, or run the audit again",
        )
    return value


def _check_digest(path: Path, claimed: object, value: dict[str, object]) -> None:
    if claimed is None:
        raise InputError(
            f"{path} has no {DIGEST_KEY}",
            expected="a report.json as `quantaudit run` writes it, with its own digest",
            fix="run the audit again",
        )
    found = digest_of_stored(value)
    if claimed != found:
        raise InputError(
            f"{path} was changed after it was written: its content has the digest {found[:12]}",
            expected=f"the digest it was written with, {str(claimed)[:12]}",
            fix="take the original file, or run the audit again",
        )


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the top level"
    more = f" (and {error.error_count() - 1} more faults)" if error.error_count() > 1 else ""
    return f"{place}: {first['msg']}{more}"


def _unreadable(path: Path, cause: str) -> InputError:
    return InputError(
        f"{path} cannot be read: {cause}",
        expected="the report.json of an audit",
        fix="check the path, or make a report with `quantaudit run`",
    )


def _wrong(path: Path, cause: str) -> InputError:
    return InputError(
        f"{path} is no audit report: {cause}",
        expected="a report.json that `quantaudit run` wrote",
        fix="run the audit again, and keep its report as it was written",
    )
