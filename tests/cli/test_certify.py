"""`quantaudit certify` as a user meets it: exit codes, one line for bad input, JSON and nothing else on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Command, is_one_line

BOUNDARY = ("--dtype", "fp32", "--threads", "1")
KEYS = {
    "a",
    "b",
    "level",
    "num_pairs",
    "identical",
    "special_blocks",
    "differing",
    "counterexample",
    "rule",
    "environment",
}


def test_identical_is_0_and_the_summary_is_short(quantaudit: Command) -> None:
    ended = quantaudit("certify", "mxfp4-even", "eager:mxfp4-even", *BOUNDARY)
    assert ended.code == 0
    assert "mxfp4-even against eager:mxfp4-even, fp32: identical" in ended.out
    assert ended.out.count("\n") <= 25


def test_different_is_3_with_the_rule_and_the_first_input_in_bits(quantaudit: Command) -> None:
    ended = quantaudit("certify", "mxfp4-floor", "mxfp4-even-away", *BOUNDARY)
    assert ended.code == 3
    assert "scale.rounding: floor | even" in ended.out
    assert "tie: even | away" in ended.out
    assert "in a group of absmax" in ended.out and "(0x" in ended.out
    assert ended.out.count("\n") <= 25


def test_unproved_is_4(quantaudit: Command) -> None:
    assert quantaudit("certify", "nvfp4", "eager:nvfp4", *BOUNDARY).code == 4


def test_json_is_all_of_stdout_and_has_the_stable_keys(quantaudit: Command) -> None:
    ended = quantaudit("certify", "int4-g32-div7", "int4-g32-div7.5", "--json", *BOUNDARY)
    assert ended.code == 3
    (pair,) = json.loads(ended.out)["pairs"]
    assert set(pair) >= KEYS
    assert set(pair["differing"]) == {"scales", "codes", "values"}
    assert pair["rule"] == {"field": "scale.divisor", "a_value": "7", "b_value": "7.5"}
    assert pair["special_blocks"] == "different"
    assert all(len(side["arithmetic_digest"]) == 64 for side in pair["sides"])


def test_a_written_certificate_can_be_checked(quantaudit: Command, tmp_path: Path) -> None:
    path = tmp_path / "new" / "certificate.json"
    assert quantaudit("certify", "mxfp4-even", "eager:mxfp4-even", "-o", path, *BOUNDARY).code == 0
    ended = quantaudit("certify", "--check", path, "--threads", "1")
    assert ended.code == 0
    assert "the certificate holds" in ended.out
    changed = path.read_text().replace('"codes": 0', '"codes": 7')
    path.write_text(changed)
    ended = quantaudit("certify", "--check", path, "--threads", "1")
    assert ended.code == 3
    assert "differing.codes was 7, is 0" in ended.out


def test_a_callable_is_found_in_the_current_folder(
    quantaudit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_trainer_rule.py").write_text(
        "from quantaudit import fake_quantize, get_scheme\n\n\n"
        "def quant(x):\n    return fake_quantize(x, get_scheme('mxfp4-even-zero'))\n"
    )
    monkeypatch.chdir(tmp_path)
    ended = quantaudit("certify", "mxfp4-even", "my_trainer_rule:quant", *BOUNDARY)
    assert ended.code == 3
    assert "gives what mxfp4-even-zero gives" in ended.out
    assert "tie: even | toward-zero" in ended.out


def test_what_a_callable_prints_is_no_part_of_the_json(
    quantaudit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_loud_rule.py").write_text(
        "from quantaudit import fake_quantize, get_scheme\n\n\n"
        "def quant(x):\n    print('quantizing')\n    return fake_quantize(x, get_scheme('mxfp4-even'))\n"
    )
    monkeypatch.chdir(tmp_path)
    ended = quantaudit("certify", "mxfp4-even", "my_loud_rule:quant", "--json", *BOUNDARY)
    assert json.loads(ended.out)["pairs"][0]["b"] == "my_loud_rule:quant"
    assert "quantizing" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mxfp4-flor", "mxfp4-even"), "did you mean mxfp4-floor"),
        (("nowhere:f", "mxfp4-even"), "module:callable"),
        (("fused:nothing", "mxfp4-even"), "the scheme 'nothing'"),
        (("mxfp4-even",), "one side"),
        ((), "no sides"),
        (("mxfp4-even", "mxfp4-even", "--dtype", "fp16"), "bf16 or fp32"),
        (("mxfp4-even", "mxfp4-even", "--threads", "0"), "1 to 1024"),
        (("--check", "nowhere.json"), "nowhere.json"),
        (("mxfp4-even", "mxfp4-even", "--check", "x.json"), "--check with more to do"),
    ],
)
def test_bad_input_is_one_line_and_2(quantaudit: Command, arguments: tuple[str, ...], said: str) -> None:
    ended = quantaudit("certify", *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert is_one_line(ended.err)
