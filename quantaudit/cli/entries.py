"""Registry contents as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from quantaudit.api import ListEntry


def print_entries(entries: tuple[ListEntry, ...]) -> None:
    """Prints name, origin and description."""
    table = Table("name", "origin", "description", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(entry.name, entry.origin, entry.description)
    Console(highlight=False).print(table)
