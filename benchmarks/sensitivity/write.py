"""Writes the table into a folder: JSON is the source, markdown and HTML are rendered from it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sensitivity.markdown import render_markdown
from benchmarks.sensitivity.page import render_page
from benchmarks.sensitivity.table import Sensitivity


def write(table: Sensitivity, folder: Path) -> tuple[Path, ...]:
    """Writes sensitivity.json, .md and .html; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "sensitivity.json": table.to_json(),
        "sensitivity.md": render_markdown(table),
        "sensitivity.html": render_page(table),
    }
    paths = []
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return tuple(paths)
