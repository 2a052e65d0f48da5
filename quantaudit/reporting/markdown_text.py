"""Escapes foreign text for GitHub's markdown: prose that stays prose, code spans that no backtick can leave."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quantaudit.reporting.plaintext import show_hidden

_ACTIVE = re.compile(r"([\\`*_\[\]#|~$])")
_STARTS_BLOCK = re.compile(r"^([-+=](?=[-=\s]|$)|\d+[.)](?=\s|$))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@&#8203;"}


def prose(text: str) -> str:
    """Returns text that renders as itself: no markup, no HTML, no mention, no line break."""
    shown = _ACTIVE.sub(r"\\\1", show_hidden(text).strip())
    shown = "".join(_ENTITIES.get(c, c) for c in shown)
    return _STARTS_BLOCK.sub(lambda match: _escape_last(match.group(1)), shown)


def code(text: str, *, in_table: bool = False) -> str:
    """Returns a code span of any text; inside a table its pipes are escaped, as tables are split first."""
    shown = show_hidden(text)
    if not shown.strip():
        return f"({len(shown)} spaces)" if shown else "(empty)"
    fence = "`" * (_longest_run(shown) + 1)
    padding = " " if shown[0] in "` " or shown[-1] in "` " else ""
    span = f"{fence}{padding}{shown}{padding}{fence}"
    return span.replace("|", "\\|") if in_table else span


def code_block(text: str) -> str:
    """Returns a fenced block of one line."""
    shown = show_hidden(text)
    fence = "`" * max(_longest_run(shown) + 1, 3)
    return f"{fence}\n{shown}\n{fence}"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Returns a table of cells that are already markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def bullets(lines: Sequence[str], *, is_markdown: bool = False) -> str:
    """Returns a list, one bullet a line of text; lines that are markdown already stay as they are."""
    return "\n".join(f"- {line if is_markdown else prose(line)}" for line in lines)


def fold(summary: str, body: str) -> str:
    """Returns a section that is closed until it is clicked.

    Args:
        summary: Words of ours, never foreign text: they stand in HTML.
        body: Markdown.
    """
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _escape_last(start: str) -> str:
    return f"{start[:-1]}\\{start[-1]}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
