"""Clusters of recorded items: the unit of dependence that a benchmark's own documents name.

Questions on one passage, or of one subject, are not independent. Where the documents have such a key with at least as
many values as an interval needs, it is the cluster; else every item stands for itself, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quantaudit.core.serial import Json
from quantaudit.stats import MIN_CLUSTERS

KEYS = ("cluster", "group", "passage_id", "article_id", "document_id", "context_id", "subject", "category", "topic")


class Groups(NamedTuple):
    """The cluster of every document, or `None` for each where none is named, and the sentence for the report."""

    names: tuple[str | None, ...]
    note: str


def keep_keys(document: dict[str, Json]) -> dict[str, Json]:
    """Returns the part of a document that `find_groups` looks at."""
    return {key: document[key] for key in KEYS if key in document}


def find_groups(documents: Sequence[dict[str, Json]], task: str) -> Groups:
    """Finds the first key that groups the documents of a task."""
    for key in KEYS:
        values = [document.get(key) for document in documents]
        if all(isinstance(value, str | int) for value in values):
            names = tuple(str(value) for value in values)
            if MIN_CLUSTERS <= len(set(names)) < len(names):
                return Groups(names, f"{task}: clusters are the {len(set(names)):,} values of {key!r}.")
    note = f"{task}: no cluster is recorded, so every item is taken as independent of the others."
    return Groups((None,) * len(documents), note)
