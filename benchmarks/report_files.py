"""A published table as three files of one name; JSON is the source, markdown and HTML are rendered from it."""

from __future__ import annotations

from pathlib import Path

from quantaudit.core.serial import write_atomically


def write_three(folder: Path, name: str, *, json: str, markdown: str, html: str) -> tuple[Path, ...]:
    """Writes NAME.json, NAME.md and NAME.html, each whole or not at all; returns their paths."""
    paths = []
    for suffix, text in (("json", json), ("md", markdown), ("html", html)):
        path = folder / f"{name}.{suffix}"
        write_atomically(path, text.encode())
        paths.append(path)
    return tuple(paths)
