"""Writes lines to a terminal or a pipe: coloured on a terminal only, in ASCII, wrapped by nothing but ourselves."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from quantaudit.reporting.plaintext import show_hidden

MIN_WIDTH = 60
MAX_LINES = 25
_PIPE_WIDTH = 100


def render_lines(lines: Iterable[Text], *, width: int, color: bool) -> str:
    """Returns the lines as they are written, each ending in a newline.

    Args:
        lines: At most `width` columns each.
        width: Columns.
        color: Whether to write ANSI colours.
    """
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        _environ={},
    )
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)
    return buffer.getvalue()


def write_lines(make: Callable[[int, bool], str], stream: TextIO) -> None:
    """Writes what `make(width, color)` returns: coloured on a terminal only, and never where NO_COLOR is set."""
    is_terminal = stream.isatty()
    width = shutil.get_terminal_size((_PIPE_WIDTH, MAX_LINES)).columns if is_terminal else _PIPE_WIDTH
    is_colored = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(make(width, is_colored).encode(encoding, "backslashreplace").decode(encoding))


def to_ascii(text: str) -> str:
    """Returns the text in ASCII: no terminal or pipe can fail to encode it, and every character is one column."""
    return show_hidden(text).encode("ascii", "backslashreplace").decode("ascii")
