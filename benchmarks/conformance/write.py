"""Writes the report into a folder: JSON is the source, markdown and HTML are rendered from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.conformance.markdown import render_markdown
from benchmarks.conformance.page import render_page
from benchmarks.conformance.table import Conformance
from benchmarks.report_files import write_three
from quantaudit.core.serial import Frozen, to_strict

_TABLES = ("pairs", "mutual", "published", "unchecked")


def write(report: Conformance, folder: Path) -> tuple[Path, ...]:
    """Writes conformance.json, .md and .html; returns their paths."""
    return write_three(
        folder, "conformance", json=to_json(report), markdown=render_markdown(report), html=render_page(report)
    )


def to_json(report: Conformance) -> str:
    """Returns strict JSON with one pair or figure a line."""
    head = json.dumps(to_strict(report.model_dump(mode="json", exclude=set(_TABLES))), indent=1)[:-2]
    tables = (f' "{name}": [\n{_rows(getattr(report, name))}\n]' for name in _TABLES)
    return head + ",\n" + ",\n".join(tables) + "\n}\n"


def _rows(items: Sequence[Frozen]) -> str:
    return ",\n".join(json.dumps(to_strict(item.model_dump(mode="json")), separators=(",", ":")) for item in items)
