"""lm-eval's `samples_<task>_<date>.jsonl`: one document a line, or one document and filter a line.

Of a line we read `doc_hash` (the identity), `doc_id`, `filter`, `prompt_hash` and `target_hash` (the chat template and
the few-shot examples are part of the prompt), one of its `metrics`, and for multiple choice the log-likelihood of
every choice in `filtered_resps`, which gives the answer margin: the right choice's less the best other one's, nats.
The task is in the file's name only. A line names neither tokenizer nor tokens, so there is no NLL per token.

The margins are kept only if the largest likelihood is the right choice exactly where `acc` is 1: else which choice is
right is not what we think.

Source: EleutherAI lm-evaluation-harness 0.4.13, `evaluator.py` and `loggers/evaluation_tracker.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.evaluation.recorded.grouping import Groups, find_groups, keep_keys
from quantaudit.evaluation.recorded.items import Asked, Format, Item, Recording, as_number, check_score
from quantaudit.evaluation.recorded.json_text import numbered_lines, parse_object, shown
from quantaudit.evaluation.recorded.source import Source

_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d\d-\d\dT[\d.:-]+")
_SMALLER_IS_BETTER = {"brier_score", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "ter"}
_UNNAMED = "task"  # what the one family is called where the file was renamed
_HIT = "acc"  # the metric that is 1 exactly where the likeliest choice is the right one


class _Row(NamedTuple):
    line: int
    doc_hash: str
    doc_id: Json
    filter: str
    score: float | None
    hit: float | None
    margin: float | None
    asked: dict[Asked, str]


def is_samples(row: dict[str, Json]) -> bool:
    """Tells whether the first object of a file is a line of lm-eval's samples."""
    return "doc_hash" in row and ("resps" in row or "filtered_resps" in row)


def task_of(name: str) -> str | None:
    """Returns the task that a file name carries, `None` where it was renamed."""
    found = _NAME.fullmatch(Path(name).name.removesuffix(".jsonl"))
    return found["task"] if found else None


def read_lm_eval(source: Source, *, metric: str | None) -> Recording:
    """Reads the samples of one task.

    Args:
        source: The file.
        metric: Which per-item metric is called accuracy; the first that can be when `None`.

    Raises:
        InputError: If a line is not of this format, or an item is there twice.
    """
    rows: list[_Row] = []
    docs: list[dict[str, Json]] = []
    chosen: str | None = None
    for number, line in numbered_lines(source.text()):
        what = f"{source.name}, line {number}"
        parsed = parse_object(line, what)
        if not is_samples(parsed):
            raise InputError(
                f"{what} has no doc_hash with responses, as the lines before it",
                expected="lines of one format",
                fix="keep the samples of one run and task in one file",
            )
        if not rows:
            chosen = _choose(parsed, metric, source.name)
        rows.append(_read_row(parsed, chosen, number, what))
        docs.append(keep_keys(_as_object(parsed.get("doc"))))
    task = task_of(source.name) or _UNNAMED
    groups = find_groups(docs, task)
    notes = [f"{task}: {chosen or 'no metric'} is called accuracy, of {_named_metrics(parsed)}.", groups.note]
    margins_hold = _agree(rows)
    if not margins_hold:
        notes.append(f"{task}: which choice is right cannot be told, so there are no answer margins.")
    items = _name_items(rows, groups, task, source.name, margins_hold)
    return Recording(
        name=source.label,
        digest=source.digest,
        format=Format.LM_EVAL,
        items=items,
        metric=chosen or "",
        notes=tuple(notes),
    )


def _choose(row: dict[str, Json], wanted: str | None, name: str) -> str | None:
    """Returns the metric to read: the one asked for, or the first that is a single number from 0 to 1."""
    listed = _metrics(row)
    usable = [m for m in listed if m not in _SMALLER_IS_BETTER and _is_share(row.get(m))]
    if wanted is None:
        return usable[0] if usable else None
    if wanted in usable:
        return wanted
    raise InputError(
        f"the metric {wanted!r} in {name}",
        expected=f"one of {', '.join(usable)}" if usable else "a metric that is one number from 0 to 1 an item",
        fix="correct --metric, or leave it out",
    )


def _metrics(row: dict[str, Json]) -> list[str]:
    listed = row.get("metrics")
    return [m for m in listed if isinstance(m, str)] if isinstance(listed, list) else []


def _named_metrics(row: dict[str, Json]) -> str:
    return ", ".join(_metrics(row)) or "none"


def _is_share(value: Json) -> bool:
    """Tells whether a metric can be a score: absent in this line, not a number, or from 0 to 1."""
    if value is None:
        return True
    return isinstance(value, bool | int | float) and (math.isnan(value) or 0 <= value <= 1)


def _read_row(row: dict[str, Json], metric: str | None, number: int, what: str) -> _Row:
    doc_hash = row["doc_hash"]
    if not isinstance(doc_hash, str) or not doc_hash:
        raise InputError(f"{what}: doc_hash is {doc_hash!r:.40}", expected="a text", fix="run lm-eval with log_samples")
    score = None if metric is None else as_number(row.get(metric), f"{what}: {metric}")
    hit = row.get(_HIT)
    asked = {Asked.PROMPT: row.get("prompt_hash"), Asked.TARGET: row.get("target_hash")}
    return _Row(
        line=number,
        doc_hash=doc_hash,
        doc_id=row.get("doc_id"),
        filter=str(row.get("filter", "")),
        score=None if score is None else check_score(score, f"{what}: {metric}"),
        hit=float(hit) if isinstance(hit, bool | int | float) else None,
        margin=_margin(row),
        asked={key: value for key, value in asked.items() if isinstance(value, str)},
    )


def _margin(row: dict[str, Json]) -> float | None:
    """Returns the log-likelihood of the right choice less that of the best other one, nats."""
    choices = row.get("filtered_resps")
    if not isinstance(choices, list) or len(choices) < 2:
        return None
    likelihoods = [_likelihood(choice) for choice in choices]
    right = _right_choice(row, len(choices))
    if right is None or any(value is None for value in likelihoods):
        return None
    known = [value for value in likelihoods if value is not None]
    return known[right] - max(value for i, value in enumerate(known) if i != right)


def _likelihood(choice: Json) -> float | None:
    """Returns the first of a pair (log-likelihood, is it greedy); lm-eval writes both as text."""
    if not isinstance(choice, list) or len(choice) != 2 or str(choice[1]) not in ("True", "False"):
        return None
    try:
        return float(str(choice[0]))
    except ValueError:
        return None


def _right_choice(row: dict[str, Json], num_choices: int) -> int | None:
    """Returns the position of the right choice: `target` is its position, or its text."""
    target = row.get("target")
    text = target.strip() if isinstance(target, str) else str(target)
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) < num_choices:
        return int(text)
    asked = _as_object(row.get("arguments"))
    texts = [_as_object(asked.get(f"gen_args_{i}")).get("arg_1") for i in range(num_choices)]
    stripped = [t.strip() if isinstance(t, str) else None for t in texts]
    return stripped.index(text) if stripped.count(text) == 1 else None


def _agree(rows: list[_Row]) -> bool:
    """Tells whether the sign of every margin says what `acc` says; a tie may go either way."""
    return all(
        r.hit == float(r.margin > 0) for r in rows if r.margin and r.hit is not None and not math.isnan(r.margin)
    )


def _name_items(rows: list[_Row], groups: Groups, task: str, name: str, margins_hold: bool) -> tuple[Item, ...]:
    """Gives every line its identity: the document, its number where a document is there more than once, the filter."""
    _refuse_repeats(rows, name)
    num_filters = len({row.filter for row in rows})
    copies = Counter((row.doc_hash, row.filter) for row in rows)
    items = []
    for row, group in zip(rows, groups.names, strict=True):
        family = f"{task}/{row.filter}" if num_filters > 1 else task
        is_copy = copies[row.doc_hash, row.filter] > 1
        values = {"accuracy": row.score, "answer-margin": row.margin if margins_hold else None}
        items.append(
            Item(
                id=f"{family}/{row.doc_hash[:24]}" + (f"#{row.doc_id}" if is_copy else ""),
                family=family,
                cluster=group or (row.doc_hash[:24] if is_copy else None),
                values={observer: value for observer, value in values.items() if value is not None},
                asked=row.asked,
            )
        )
    return tuple(items)


def _refuse_repeats(rows: Iterable[_Row], name: str) -> None:
    first: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.doc_hash, row.filter, str(row.doc_id))
        if key in first:
            raise InputError(
                f"{name}: the document {shown(row.doc_hash)} of line {first[key]} is there again in line {row.line}",
                expected="every document once a filter",
                fix="keep one run in a file; lm-eval adds to a file that it finds",
            )
        first[key] = row.line


def _as_object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
