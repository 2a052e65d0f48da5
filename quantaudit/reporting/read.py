"""Reads a stored report as untrusted input: bounded in size and depth, one schema version, one message if wrong."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from quantaudit.core.errors import InputError
from quantaudit.core.report import SCHEMA_VERSION, AuditReport

MAX_BYTES = 64 * 1024 * 1024


def read_report(path: Path) -> AuditReport:
    """Reads what `write_reports` wrote.

    Args:
        path: A `report.json`.

    Raises:
        InputError: If the file cannot be read, is too large or nested too deeply, is not JSON, has another schema
            version, or is not an audit report.
    """
    data = _read_bounded(path)
    text = _decode(path, data)
    _check_version(path, _parse(path, text))
    try:
        return AuditReport.from_json(text)
    except ValidationError as error:
        raise _wrong(path, _first_fault(error)) from error


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


def _check_version(path: Path, value: object) -> None:
    if not isinstance(value, dict) or value.get("kind") != "audit":
        raise _wrong(path, "it is not an audit report")
    version = value.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version!r}",
            expected=f"schema version {SCHEMA_VERSION}",
            fix="read it with the release of quantaudit that wrote it, or run the audit again",
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
