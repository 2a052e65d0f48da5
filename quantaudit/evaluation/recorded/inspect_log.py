"""inspect logs: `.json` as one document, `.eval` as a zip of JSON members, one a sample.

Of a sample we read `id` and `epoch` (the identity), digests of `input` and `target`, and the value of one scorer: "C"
is 1, "I" and "N" are 0, "P" is a half, numbers and truth values are themselves. Repetitions of a sample are one
cluster; else the metadata of the samples may name clusters. A sample without a score, such as one that ended in an
error, is an item that was not answered.

A member of an archive is opened only if it and the sum of all of them stay below a stated size; nothing is extracted
to disk. Members packed with zstd need a later Python than this package supports at least; the message says what to do.

Source: inspect_ai 0.3.285, `log/_log.py` (EvalLog, EvalSample) and `scorer/_metric.py` (value_to_float).
"""

from __future__ import annotations

import io
import zipfile
import zlib

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json, canonical_bytes
from quantaudit.evaluation.recorded.grouping import find_groups
from quantaudit.evaluation.recorded.items import Asked, Format, Item, Recording, as_number, check_score, digest_text
from quantaudit.evaluation.recorded.json_text import parse_object, shown
from quantaudit.evaluation.recorded.source import MAX_BYTES, Source

_HEADER = "header.json"
_SAMPLES = "samples/"
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_MAX_MEMBERS = 1_000_000


def is_log(document: dict[str, Json]) -> bool:
    """Tells whether a JSON document is an inspect log."""
    return isinstance(document.get("eval"), dict) and "samples" in document


def read_document(source: Source, document: dict[str, Json], *, metric: str | None) -> Recording:
    """Reads a log in one document.

    Raises:
        InputError: If a sample is not as inspect writes it, or is there twice.
    """
    samples = document.get("samples")
    listed = samples if isinstance(samples, list) else []
    return _collect(source, document, [_object(sample) for sample in listed], metric)


def read_archive(source: Source, *, metric: str | None, max_bytes: int = MAX_BYTES) -> Recording:
    """Reads a log in a zip archive.

    Raises:
        InputError: As `read_document`; if it is no log, too large, damaged, or packed in a way that cannot be opened.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
            members = archive.infolist()
            _check_members(members, source.name, max_bytes)
            header = _open(archive, _HEADER, source.name)
            names = [m.filename for m in members if m.filename.startswith(_SAMPLES) and m.filename.endswith(".json")]
            samples = [_open(archive, name, source.name) for name in names]
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _not_a_log(source.name, f"it is damaged ({error})") from None
    return _collect(source, header, samples, metric)


def _check_members(members: list[zipfile.ZipInfo], name: str, max_bytes: int) -> None:
    names = [member.filename for member in members]
    if _HEADER not in names:
        raise _not_a_log(name, f"it holds no {_HEADER}")
    if len(set(names)) < len(names) or len(names) > _MAX_MEMBERS:
        raise _not_a_log(name, "it holds a member twice, or too many")
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise InputError(f"{name} unpacks to {total:,} bytes", expected=f"at most {max_bytes:,}", fix="split the log")
    if any(member.flag_bits & 1 for member in members):
        raise _not_a_log(name, "it is encrypted")


def _open(archive: zipfile.ZipFile, member: str, name: str) -> dict[str, Json]:
    """Parses one member; reading stops at the size the directory states, whatever the packed bytes would give."""
    try:
        with archive.open(member) as stream:
            size = archive.getinfo(member).file_size
            data = stream.read(size + 1)
    except NotImplementedError:
        raise InputError(
            f"{name} is packed with a method that this Python cannot open (zstd)",
            expected="an inspect log in JSON, or an archive packed with deflate",
            fix="convert it: inspect log convert LOG.eval --to json --output-dir DIR",
        ) from None
    if len(data) > size:
        raise _not_a_log(name, f"{member} is larger than the archive says")
    return parse_object(data.decode(), f"{name}, {member}")


def _not_a_log(name: str, reason: str) -> InputError:
    return InputError(
        f"{name} is not an inspect log: {reason}", expected="a whole .eval or .json log", fix="copy it again"
    )


def _collect(source: Source, log: dict[str, Json], samples: list[dict[str, Json]], metric: str | None) -> Recording:
    task = str(_object(log.get("eval")).get("task") or "task")
    scorer = _choose(samples, metric, source.name)
    groups = find_groups([_object(sample.get("metadata")) for sample in samples], task)
    epochs = {str(sample.get("epoch")) for sample in samples}
    items: dict[str, Item] = {}
    for sample, group in zip(samples, groups.names, strict=True):
        identity = sample.get("id")
        if not isinstance(identity, str | int):
            raise InputError(
                f"{source.name}: a sample with the id {identity!r:.40}", expected="an id", fix="log it again"
            )
        what = f"{source.name}, sample {shown(str(identity))}"
        name = f"{identity}#{sample.get('epoch')}" if len(epochs) > 1 else str(identity)
        if name in items:
            raise InputError(
                f"{what} is there twice", expected="every sample once an epoch", fix="keep one run in a log"
            )
        items[name] = Item(
            id=name,
            family=task,
            cluster=group or (str(identity) if len(epochs) > 1 else None),
            values={} if scorer is None else _values(sample, scorer, what),
            asked={
                Asked.PROMPT: digest_text(canonical_bytes(sample.get("input")).decode()),
                Asked.TARGET: digest_text(canonical_bytes(sample.get("target")).decode()),
            },
        )
    return Recording(
        name=source.label,
        digest=source.digest,
        format=Format.INSPECT,
        items=tuple(items.values()),
        metric=scorer or "",
        notes=(f"{task}: {scorer or 'no scorer'} is called accuracy.", groups.note),
    )


def _choose(samples: list[dict[str, Json]], wanted: str | None, name: str) -> str | None:
    """Returns the scorer to read: the one asked for, or the first that any sample has."""
    known = list(dict.fromkeys(scorer for sample in samples for scorer in _object(sample.get("scores"))))
    if wanted is None or wanted in known:
        return wanted or (known[0] if known else None)
    raise InputError(
        f"the metric {wanted!r} in {name}",
        expected=f"one of {', '.join(known)}" if known else "a log with scores",
        fix="correct --metric, or leave it out",
    )


def _values(sample: dict[str, Json], scorer: str, what: str) -> dict[str, float]:
    value = _object(_object(sample.get("scores")).get(scorer)).get("value")
    if isinstance(value, str):
        if value not in _WORDS and value.lower() not in _WORDS:
            raise InputError(
                f"{what}: {scorer} is {shown(value)}",
                expected="C, I, P, N or a number",
                fix="name another with --metric",
            )
        value = _WORDS.get(value, _WORDS.get(value.lower()))
    number = as_number(value, f"{what}: {scorer}")
    return {} if number is None else {"accuracy": check_score(number, f"{what}: {scorer}")}


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
