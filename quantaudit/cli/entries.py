"""Registry contents as text: wrapped on a terminal, one line an entry in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
from itertools import groupby

from quantaudit.api import ListEntry

_LEAST_WIDTH = 60
_PIPE_WIDTH = 1 << 16


def print_entries(entries: tuple[ListEntry, ...]) -> None:
    """Prints names and descriptions under the package and version they come from."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    sys.stdout.write(lay_out(entries, max(width, _LEAST_WIDTH)))


def lay_out(entries: tuple[ListEntry, ...], width: int) -> str:
    """Returns the list in lines of at most `width` columns, where no name is longer than that."""
    indent = max((len(entry.name) for entry in entries), default=0) + 2
    lines: list[str] = []
    for origin, group in groupby(entries, key=lambda entry: entry.origin):
        lines.append(f"from {origin}:")
        for entry in group:
            text = f"{entry.name:<{indent}}{' '.join(entry.description.split())}"
            lines += textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
