"""Packed checkpoints of every format at the command line: audited with their codes, compared, or refused in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.checkpoint.packed import PackedFormat
from quantaudit.core.decision import Outcome
from quantaudit.numerics import get_scheme
from quantaudit.reporting import read_report
from tests.checkpoint.packed_files import SCHEMES, copy_of, written_once
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, edit_tensors, save
from tests.cli.command import Command, is_one_line
from tests.cli.conftest import READS_BYTES


@pytest.mark.parametrize("name", ["int3-g32", "nvfp4", "fp8-block128"])
def test_a_deployment_of_every_format_is_audited_with_its_codes(
    name: str, written: Path, tmp_path: Path, quantaudit: Command
) -> None:
    lo = save(tmp_path / "lo", config=READS_BYTES, scheme=get_scheme(name))
    ended = quantaudit("run", written / "plain", "--lo", lo, "--threads", "1", "-o", "out")
    told = read_report(Path("out") / "report.json")
    assert ended.code in (3, 4) and int(told.verdict.exit_code) == ended.code
    assert told.lo.num_quantized_tensors == told.lo.num_expert_tensors == 36
    integrity = next(c.decision for c in told.clauses if c.name == "integrity")
    assert integrity.outcome is Outcome.PASS, integrity.reason


@pytest.mark.parametrize("name", ["int2-g32", "int3-g32", "int4-g32-div7.5", "nvfp4", "int8-channel"])
def test_the_rule_that_packed_a_master_is_named(name: str, tmp_path: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", save(tmp_path / "plain"), written_once(name), "--match", "*gate")
    assert ended.code == 3 and f"explained: {name} gives all of the values of 2 tensors" in ended.out


@pytest.mark.parametrize("name", ["int3-g32", "nvfp4", "mxfp8-e4m3-rceil"])
def test_inspect_shows_what_is_packed(name: str, quantaudit: Command) -> None:
    ended = quantaudit("inspect", written_once(name))
    assert ended.code == 0 and ended.out.startswith(f"declared: {SCHEMES[name]}\n")
    assert "36 of 36 expert matrices are packed" in ended.out and "finding" not in ended.out


@pytest.mark.parametrize("verb", ["inspect", "run"])
@pytest.mark.parametrize("part", ["weight_scale", "weight_packed"])
def test_a_part_that_is_missing_exits_2_in_one_line(verb: str, part: str, tmp_path: Path, quantaudit: Command) -> None:
    folder = copy_of("int3-g32", tmp_path / "c")
    edit_tensors(folder / WEIGHTS, lambda tensors: tensors.pop(f"{LAYER_2}.0.w1.{part}"))
    ended = quantaudit(verb, folder)
    assert ended.code == 2 and is_one_line(ended.err) and "w1 is stored as" in ended.err


def test_another_number_of_bits_exits_2_in_one_line(tmp_path: Path, quantaudit: Command) -> None:
    folder = copy_of("int3-g32", tmp_path / "c")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_bits": 3', '"num_bits": 4'))
    ended = quantaudit("inspect", folder)
    assert ended.code == 2 and is_one_line(ended.err)
    assert "is packed as int3 in groups of 32" in ended.err and "expected int4 in groups of 32" in ended.err
    assert SCHEMES["int3-g32"] is PackedFormat.INTEGERS and f"({PackedFormat.INTEGERS})" in ended.err
