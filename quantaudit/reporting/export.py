"""Where a report rendered again goes: into a folder, to one file whose ending says the format, or to stdout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.reporting.single import FORMATS, render_text, write_report
from quantaudit.reporting.write import parse_format, write_reports

DEFAULT_FORMATS = ("html", "md")
_STDOUT = "-"


class Exported(NamedTuple):
    """What came of it.

    Attributes:
        text: What belongs on stdout, `None` if files were written.
        main: The file to open first.
    """

    text: str | None
    main: Path | None


def export_report(report: AuditReport, output: Path, formats: Sequence[str] | None) -> Exported:
    """Writes a report to wherever `output` says.

    Args:
        report: The report.
        output: A folder; a file that ends in .html, .md, .json, .xml (JUnit) or .sarif; or "-" for stdout.
        formats: "html", "md", "json", "junit", "sarif"; what the ending says, or HTML and markdown, when `None`.

    Raises:
        InputError: If a format is unknown, does not fit the output, or nothing can be written there.
    """
    wanted = None if formats is None else [parse_format(name).value for name in formats]
    if str(output) == _STDOUT:
        return Exported(render_text(report, _only(wanted)), None)
    try:
        if output.suffix in FORMATS and not output.is_dir():
            _check_ending(output, wanted)
            write_report(report, output)
            return Exported(None, output)
        paths = write_reports(report, output, DEFAULT_FORMATS if wanted is None else wanted)
    except OSError as error:
        raise InputError(
            f"the output {output} cannot be written: {error.strerror or type(error).__name__}",
            expected="a folder that can be written to, or made",
            fix="name another with -o",
        ) from error
    return Exported(None, paths.get("html", next(reversed(paths.values()))))


def _only(wanted: list[str] | None) -> str:
    if wanted is None or len(wanted) != 1:
        raise InputError(
            f"{'no format' if not wanted else f'{len(wanted)} formats'} for stdout",
            expected="one format, since one stream holds one view",
            fix="add for example --to md",
        )
    return wanted[0]


def _check_ending(output: Path, wanted: list[str] | None) -> None:
    if wanted is not None and wanted != [FORMATS[output.suffix]]:
        raise InputError(
            f"the file {output.name} for {', '.join(wanted) or 'no format'}",
            expected=f"{FORMATS[output.suffix]}, as the ending says",
            fix="drop --to, or name a folder with -o",
        )
