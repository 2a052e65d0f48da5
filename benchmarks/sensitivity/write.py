"""Writes the table into a folder: JSON is the source, markdown and HTML are rendered from it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report_files import write_three
from benchmarks.sensitivity.markdown import render_markdown
from benchmarks.sensitivity.page import render_page
from benchmarks.sensitivity.table import Sensitivity


def write(table: Sensitivity, folder: Path) -> tuple[Path, ...]:
    """Writes sensitivity.json, .md and .html; returns their paths."""
    return write_three(
        folder, "sensitivity", json=table.to_json(), markdown=render_markdown(table), html=render_page(table)
    )
