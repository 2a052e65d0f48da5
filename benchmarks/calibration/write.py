"""Writes the table into a folder: JSON is the source, markdown and HTML are rendered from it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.calibration.markdown import render_markdown
from benchmarks.calibration.page import render_page
from benchmarks.calibration.table import Calibration
from benchmarks.report_files import write_three
from quantaudit.core.serial import to_strict


def write(table: Calibration, folder: Path) -> tuple[Path, ...]:
    """Writes calibration.json, .md and .html; returns their paths."""
    return write_three(
        folder, "calibration", json=to_json(table), markdown=render_markdown(table), html=render_page(table)
    )


def to_json(table: Calibration) -> str:
    """Returns strict JSON with one cell a line."""
    head = to_strict(table.model_dump(mode="json", exclude={"cells"}))
    assert isinstance(head, dict)
    lines = ",\n".join(json.dumps(to_strict(c.model_dump(mode="json")), separators=(",", ":")) for c in table.cells)
    return json.dumps(head, indent=1)[:-2] + ',\n "cells": [\n' + lines + "\n]\n}\n"
