"""`identify` as a user meets it: the answer in a few lines or as JSON, and exit codes that tell it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from quantaudit.cli.identify import _share, describe_identification, identify
from quantaudit.cli.shares import format_percent
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.identification import Identification, NamedMismatch, Standing, TensorIdentification


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Returns the exit code and stdout of the verb."""
    app = typer.Typer(add_completion=False)
    app.command()(identify)
    capsys.readouterr()
    code = app([*map(str, arguments), "--threads", "1"], standalone_mode=False)
    return int(code), capsys.readouterr().out


def test_an_explained_checkpoint_exits_0(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, written / "packed", "--master", written / "plain", "--match", "*experts*")
    assert code == 0
    assert out.startswith("EXPLAINED: ") and "mxfp4-even gives all of the values" in out
    assert len(out.splitlines()) <= 25 and out.isascii()


def test_json_has_the_stated_keys(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, written / "packed", "--master", written / "plain", "--match", "*experts*", "--json")
    shown = json.loads(out)
    assert code == 0 and len(shown["tensors"]) == 6
    for tensor in shown["tensors"]:
        assert {"name", "scheme", "rule", "explains", "alternatives"} <= tensor.keys()
        assert tensor["rule"]["scale"].startswith("even") and tensor["rule"]["tie"] == "even"


def test_weights_of_another_model_exit_3(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, written / "packed", "--master", written / "other", "--match", "layers.2.experts.*")
    assert code == 3 and out.startswith("NOT EXPLAINED: ") and "not alike" in out


def test_without_masters_what_is_not_proved_exits_4(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, written / "packed")
    assert code == 4 and out.startswith("NOT PROVED: ") and "--master HI" in out


def test_plain_numbers_alone_are_not_measured(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotMeasuredError, match="--master HI"):
        run(capsys, written / "plain")


def test_a_path_that_is_not_there_is_named(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="absent"):
        run(capsys, written / "absent")


@pytest.mark.parametrize("fraction", [1 - 2**-40, 0.99995, 1e-5, 2**-40, 0.5, 0.99989])
def test_a_share_is_never_rounded_to_all_or_to_nothing(fraction: float) -> None:
    assert format_percent(fraction) not in ("all", "100 %", "0 %")
    assert _share(fraction) not in ("1.000", "0.000") and _share(1.0) == "1.000"
    assert (format_percent(1.0), format_percent(0.0), format_percent(0.12345)) == ("all", "0 %", "12.35 %")


@pytest.mark.parametrize("columns", [80, 60])
def test_lines_fit_the_columns_asked_for(
    written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = run(capsys, written / "packed", "--master", written / "plain", "--match", "*experts*")[1]
    monkeypatch.setenv("COLUMNS", str(columns))
    out = run(capsys, written / "packed", "--master", written / "plain", "--match", "*experts*")[1]
    assert max(map(len, whole.splitlines())) > columns
    assert out.split() == whole.split()
    assert all(len(line) <= columns or " " not in line.strip() for line in out.splitlines())


def test_what_convinces_nobody_is_shown_as_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    hint = NamedMismatch(
        kind="K13", mismatch="quantized-twice", sentence="", field="passes", train="once", serve="twice", explains=0.24
    )
    tensor = TensorIdentification(
        name="layers.2.experts.down", standing=Standing.UNKNOWN, shape=(2, 2), num_matrices=1, storage="mxfp4",
        scheme="mxfp4-even", explains=0.5, runner_up=hint,
    )  # fmt: skip
    lines = list(describe_identification(Identification(served="a", master="b", tensors=(tensor,), num_unquantized=0)))
    assert "    no fault is named; nearest: quantized-twice, 24 % of what differs" in lines
