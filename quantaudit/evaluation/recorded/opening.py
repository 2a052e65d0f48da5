"""Which format a file is in, told by its content: names mislead, and a renamed file is still what it is.

A folder is read as the samples files of one lm-eval run, one a task.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.serial import digest_of
from quantaudit.evaluation.recorded.comma_separated import read_csv
from quantaudit.evaluation.recorded.inspect_log import is_log, read_archive, read_document
from quantaudit.evaluation.recorded.items import Format, Recording
from quantaudit.evaluation.recorded.json_text import numbered_lines, parse_object
from quantaudit.evaluation.recorded.lm_eval import is_samples, read_lm_eval, task_of
from quantaudit.evaluation.recorded.plain import read_jsonl
from quantaudit.evaluation.recorded.source import EXPECTED, Source, label_of, read_source

_FIX_SUMMARY = "give the samples file beside it; lm-eval writes it with --log_samples"


def open_recording(path: Path, *, metric: str | None = None) -> Recording:
    """Reads recorded results.

    Args:
        path: A file, or a folder with lm-eval's samples of several tasks.
        metric: Which per-item metric is called accuracy, where the file holds more than one.

    Raises:
        InputError: If it is in no known format, or a line is not as its format wants it.
    """
    if path.is_dir():
        return _read_folder(path, metric)
    return _read(read_source(path), metric)


def _read(source: Source, metric: str | None) -> Recording:
    if source.is_zip:
        return read_archive(source, metric=metric)
    text = source.text()
    start = text.lstrip()[:1]
    if start == "[":
        raise InputError(f"{source.name} is a JSON list", expected=EXPECTED, fix="write one object a line")
    if start != "{":
        return _without_choice(read_csv(source), metric)
    (number, first), *others = islice(numbered_lines(text), 2)
    is_document = first in ("{", "{}") or not others
    head = parse_object(text, source.name) if is_document else parse_object(first, f"{source.name}, line {number}")
    if is_log(head):
        return read_document(source, head, metric=metric)
    if is_samples(head):
        return read_lm_eval(source, metric=metric)
    if "results" in head and "configs" in head:
        raise InputError(f"{source.name} is lm-eval's summary, without items", expected=EXPECTED, fix=_FIX_SUMMARY)
    if first == "{":
        raise InputError(f"{source.name} is one JSON object", expected=EXPECTED, fix="write one object a line")
    return _without_choice(read_jsonl(source), metric)


def _without_choice(recording: Recording, metric: str | None) -> Recording:
    if metric is None:
        return recording
    raise InputError(
        f"--metric {metric} for {recording.name}, which is {recording.format.value}",
        expected="--metric with lm-eval samples or inspect logs only",
        fix="leave it out: the columns of plain results say what they are",
    )


def _read_folder(folder: Path, metric: str | None) -> Recording:
    """Reads every samples file in a folder, or in the one folder in it that lm-eval names after the model."""
    paths = sorted(folder.glob("samples_*.jsonl")) or sorted(folder.glob("*/samples_*.jsonl"))
    if not paths:
        fix = "name a file, or run lm-eval with --log_samples"
        raise InputError(f"the folder {folder}", expected="lm-eval's samples_*.jsonl in it", fix=fix)
    tasks = [task_of(path.name) for path in paths]
    for path, task in zip(paths, tasks, strict=True):
        if task is None or tasks.count(task) > 1:
            raise InputError(
                f"the folder {folder} with {path.name}",
                expected="one samples file a task, named as lm-eval names it",
                fix="keep the files of one run in a folder",
            )
    parts = [_read(read_source(path), metric) for path in paths]
    foreign = next((part for part in parts if part.format is not Format.LM_EVAL), None)
    if foreign is not None:
        raise InputError(f"{foreign.name} is {foreign.format.value}", expected="lm-eval samples", fix="remove it")
    return Recording(
        name=label_of(str(folder)),
        digest=digest_of([[path.name, part.digest] for path, part in zip(paths, parts, strict=True)]),
        format=Format.LM_EVAL,
        items=tuple(item for part in parts for item in part.items),
        metric=", ".join(dict.fromkeys(part.metric for part in parts)),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
