"""The `quantaudit` command: its verbs, and what every way of ending returns."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import click
import typer

from quantaudit.cli.inspect import inspect
from quantaudit.cli.listing import list_kind, show
from quantaudit.cli.report import report
from quantaudit.cli.run import run
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.verdict import ExitCode

_EXIT_CODES = (
    "Exit codes: 0 ADMIT, or done; 2 wrong input, nothing written; 3 REJECT, or precision differs from what is declared; "
    "4 INCONCLUSIVE, or nothing measured; 70 internal error. 1 is never a verdict."
)

app = typer.Typer(
    name="quantaudit",
    help="Tells whether a quantized mixture-of-experts model is still the model that was trained.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(inspect)
app.command()(report)
app.command(name="list")(list_kind)
app.command()(show)


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    if version:
        from quantaudit import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line and exits with the code of the table."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, standalone_mode=False)
    except InputError as error:
        return _say(str(error), ExitCode.INPUT_ERROR)
    except NotMeasuredError as error:
        return _say(f"not measured: {error}", ExitCode.INCONCLUSIVE)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.INPUT_ERROR
    except click.ClickException as error:
        return _say(error.format_message(), ExitCode.INPUT_ERROR)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted: nothing was written", 130)
    except Exception as error:
        return _say(f"internal error: {error!r}; the traceback is in {_keep_traceback()}", ExitCode.INTERNAL_ERROR)
    return int(code or 0)


def _say(message: str, code: int) -> int:
    print(f"quantaudit: {message}", file=sys.stderr)
    return code


def _keep_traceback() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="quantaudit-", suffix=".txt", delete=False) as file:
        file.write(traceback.format_exc())
    return Path(file.name)
