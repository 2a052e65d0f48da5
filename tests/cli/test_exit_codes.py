"""Every way of ending has its own code, and says one line on stderr where it is no result."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from quantaudit import api
from quantaudit.core.errors import InputError, NotMeasuredError
from tests.cli.command import Command, finish, is_one_line, start


def test_nothing_asked_shows_the_help_as_a_usage_error(quantaudit: Command) -> None:
    ended = quantaudit()
    assert ended.code == 2 and ended.out == ""
    assert ended.err.startswith("Usage: quantaudit ") and "Exit codes:" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "No such command 'nosuch'. See `quantaudit --help`"),
        (["rnu"], "Did you mean 'run'? See `quantaudit --help`"),
        (["run", "--nosuch"], "No such option: --nosuch. See `quantaudit run --help`"),
        (["run", "--recipe"], "'--recipe' requires an argument. See `quantaudit run --help`"),
        (["run", "--threads", "two"], "'--threads'"),
        (["run", "a", "b"], "unexpected extra argument"),
        (["list"], "Missing argument 'KIND'. See `quantaudit list --help`"),
        (["show", "scheme"], "Missing argument 'NAME'. See `quantaudit show --help`"),
        (["report"], "Missing argument 'FILE'. See `quantaudit report --help`"),
        (["--nosuch"], "No such option: --nosuch. See `quantaudit --help`"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], said: str, quantaudit: Command) -> None:
    ended = quantaudit(*arguments)
    assert ended.code == 2 and ended.out == ""
    assert is_one_line(ended.err) and said in ended.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("this", expected="that", fix="do so"), 2, "quantaudit: this; expected that; do so\n"),
        (NotMeasuredError("nothing there"), 4, "quantaudit: not measured: nothing there\n"),
        (KeyboardInterrupt(), 130, "quantaudit: interrupted\n"),
        (RuntimeError("two\nlines"), 70, "quantaudit: internal error: RuntimeError('two\\nlines')"),
        (OSError(28, "No space left on device"), 70, "quantaudit: internal error: OSError"),
    ],
)
def test_what_is_raised_decides_the_code(
    error: BaseException, code: int, said: str, quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "audit", fail)
    ended = quantaudit("run")
    assert ended.code == code and ended.out == ""
    assert is_one_line(ended.err) and ended.err.startswith(said)
    assert list(Path.cwd().iterdir()) == []


def test_the_traceback_of_an_internal_error_is_in_a_file(
    quantaudit: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(api, "audit", lambda *_, **__: 1 // 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = quantaudit("run")
    assert ended.code == 70 and "Traceback" not in ended.err
    kept = Path(ended.err.rstrip("\n").rpartition(" ")[2])
    assert "ZeroDivisionError" in kept.read_text() and "Traceback" in kept.read_text()


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_one_line_and_no_report(written: Path, tmp_path: Path) -> None:
    process = start("run", written / "plain", "--threads", "1", "--recipe", "int4-g32", cwd=tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("start: ")
    assert process.stderr.readline().startswith("open: ")
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130 and ended.out == ""
    assert ended.err.splitlines()[-1] == "quantaudit: interrupted" and "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []
