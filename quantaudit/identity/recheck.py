"""A stored certificate run again: does this machine, with these versions, still find the same?"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from quantaudit.core.certificate import Certificate, CertifiedPair, Recheck
from quantaudit.core.errors import InputError
from quantaudit.identity.certify import certify
from quantaudit.identity.enumeration import Progress

_LARGEST_FILE = 1 << 22


def read_certificate(path: Path) -> Certificate:
    """Reads a certificate.

    Raises:
        InputError: If the file is missing, too large, or no certificate.
    """
    expected = "a file that `quantaudit certify A B -o FILE` wrote"
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path} of {path.stat().st_size:,} bytes", expected=expected, fix="name another file")
        certificate = Certificate.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} ({error.strerror})", expected=expected, fix="correct the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, which is not UTF-8", expected=expected, fix="name another file") from error
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole"
        said = error.errors()[0]["msg"]
        raise InputError(f"{path} ({where}: {said})", expected=expected, fix="make it again") from error
    if certificate.schema_version != 1 or certificate.kind != "certificate" or not certificate.pairs:
        raise InputError(
            f"{path} of kind {certificate.kind!r}, schema {certificate.schema_version}, {len(certificate.pairs)} pairs",
            expected=f"{expected}, schema 1",
            fix="make it again with this version",
        )
    return certificate


def recheck(stored: Certificate, *, threads: int = 1, progress: Progress | None = None) -> Recheck:
    """Makes every pair of a certificate again and compares.

    Args:
        stored: The certificate.
        threads: CPU threads.
        progress: Told (stage, done, total).
    """
    fresh = tuple(
        certify(
            pair.a,
            pair.b,
            dtype=pair.domain.dtype,
            like=_like(pair),
            deep=pair.domain.deep,
            threads=threads,
            progress=progress,
        ).pairs[0]
        for pair in stored.pairs
    )
    changes: list[str] = []
    environment: list[str] = []
    for before, now in zip(stored.pairs, fresh, strict=True):
        for name, was, is_now in _differences(before, now):
            place = f"{before.a} against {before.b}: {name} was {was}, is {is_now}"
            (environment if name.startswith("environment.") else changes).append(place)
    return Recheck(
        holds=not changes,
        changes=tuple(changes),
        environment=tuple(environment),
        certificate=Certificate(pairs=fresh),
    )


def _like(pair: CertifiedPair) -> str | None:
    """Returns the scheme whose groups a user's callable was given."""
    return next((side.scheme for side in pair.sides if side.origin == "user"), None)


def _differences(before: CertifiedPair, now: CertifiedPair) -> list[tuple[str, str, str]]:
    """Lists the fields in which two pairs differ, dotted."""
    left, right = _flat("", before.model_dump(mode="json")), _flat("", now.model_dump(mode="json"))
    keys = dict.fromkeys([*left, *right])
    return [(k, left.get(k, "absent"), right.get(k, "absent")) for k in keys if left.get(k) != right.get(k)]


def _flat(prefix: str, value: object) -> dict[str, str]:
    if isinstance(value, dict):
        items = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list):
        items = [(str(index), part) for index, part in enumerate(value)]
    else:
        return {prefix: str(value)}
    return {k: v for key, part in items for k, v in _flat(f"{prefix}.{key}" if prefix else key, part).items()}
