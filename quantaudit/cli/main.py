"""The `quantaudit` command: its verbs, and what every way of ending returns."""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer

from quantaudit import __version__
from quantaudit.cli.certify import certify
from quantaudit.cli.compare import compare
from quantaudit.cli.contract import contract
from quantaudit.cli.diff import diff
from quantaudit.cli.fingerprint import fingerprint
from quantaudit.cli.identify import identify
from quantaudit.cli.inspect import inspect
from quantaudit.cli.judge import judge
from quantaudit.cli.listing import list_kind, show
from quantaudit.cli.recipe import recipe
from quantaudit.cli.report import report
from quantaudit.cli.run import run
from quantaudit.cli.simulate import simulate
from quantaudit.core.errors import InputError, NotMeasuredError

# As `core.verdict.ExitCode`, which is not imported here: help waits for no data types. A test compares them.
INPUT_ERROR, INCONCLUSIVE, INTERNAL_ERROR = 2, 4, 70
INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C ended

# The mark in front keeps the lines of a paragraph as they are.
EXIT_CODES = """\b
Exit codes:
    0  ADMIT, or done
    2  wrong usage or input
    3  REJECT, a regression, or precision not as declared
    4  INCONCLUSIVE, not measured, or not comparable
   70  internal error: a fault of quantaudit
  130  interrupted
1 is never a verdict.
"""

app = typer.Typer(
    name="quantaudit",
    help="Tells whether a quantized mixture-of-experts model is still the model that was trained.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is the same on a terminal and in a pipe, and loads four times faster
)
app.command(short_help="Audit a deployment against its reference.")(run)
app.command(short_help="Judge recorded results of two models.")(judge)
app.command(short_help="Compare two quantizers as functions.")(certify)
app.command(short_help="Compare two checkpoints tensor by tensor.")(compare)
app.command(short_help="Find the scheme that made a checkpoint.")(identify)
app.command(short_help="Write a manifest of quantized values.")(fingerprint)
app.command(short_help="Show which experts really are low-bit.")(inspect)
app.command(short_help="Render a stored report again.")(report)
app.command(short_help="Compare two stored reports.")(diff)
app.add_typer(contract, name="contract", short_help="Check, show and list contracts.")
app.add_typer(recipe, name="recipe", short_help="List, show and run recipes.")
app.add_typer(simulate, name="simulate", short_help="Train with a check at every step.")
app.command(name="list", short_help="List schemes, recipes, contracts and more.")(list_kind)
app.command(short_help="Show the whole of a scheme, recipe or contract.")(show)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Holds the options that come before a verb; what they do is in their callbacks."""


def main() -> None:
    """Runs the command line and exits with the code of the table."""
    if hasattr(signal, "SIGPIPE"):
        # `quantaudit list schemes | head` ends quietly, as every filter does, instead of with a traceback and code 1.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    """Returns the exit code; whatever ends a verb early is one line on stderr."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="quantaudit")
    except InputError as error:
        return _say(str(error), INPUT_ERROR)
    except NotMeasuredError as error:
        return _say(f"not measured: {error}", INCONCLUSIVE)
    except typer.TyperException as error:
        return _refuse_usage(error.format_message(), arguments)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        return _say(f"internal error: {error!r}; the traceback is in {_keep_traceback()}", INTERNAL_ERROR)
    if code == INTERRUPTED:  # how typer hands on a Ctrl-C
        return _say("interrupted", INTERRUPTED)
    return int(code or 0)


def _refuse_usage(message: str, arguments: list[str]) -> int:
    if message.startswith("Usage: "):  # nothing was asked for, and the message is the help
        sys.stderr.write(f"{message}\n")
        return INPUT_ERROR
    verbs = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    verbs += [group.name or "" for group in app.registered_groups]
    verb = f" {arguments[0]}" if arguments[0] in verbs else ""
    end = "" if message.endswith((".", "?")) else "."
    return _say(f"{message}{end} See `quantaudit{verb} --help`", INPUT_ERROR)


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"quantaudit: {line}", file=sys.stderr)
    return code


def _keep_traceback() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="quantaudit-", suffix=".txt", delete=False) as file:
        file.write(traceback.format_exc())
    return Path(file.name)
