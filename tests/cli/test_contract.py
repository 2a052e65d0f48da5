"""`contract check`, `contract show` and `contract list`, and what contracts do to a run."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from quantaudit.core.contract import Contract
from quantaudit.core.recipe_file import contract_names, load_contract
from quantaudit.reporting import read_report
from tests.cli.command import Command, interpret, is_one_line
from tests.cli.conftest import PROBES_A_FAMILY, few_probes

LENIENT = f'name = "lenient"\nbase = "default"\nmin_probes = {PROBES_A_FAMILY}\nmin_clusters = 7\n'
WIDE = "".join(f'[[clauses]]\nname = "{name}"\nmargin = 0.5\n' for name in ("task", "refusal", "over-refusal"))


@pytest.fixture
def lenient(tmp_path: Path) -> Path:
    path = tmp_path / "lenient.toml"
    path.write_text(LENIENT + WIDE)
    return path


def test_too_few_probes_are_told_gate_by_gate_with_the_code_of_inconclusive(quantaudit: Command) -> None:
    ended = quantaudit("contract", "check")
    assert ended.code == 4 and ended.err == ""
    obstacles = [line for line in ended.out.splitlines() if "cannot decide: " in line]
    assert obstacles[0] == "fidelity: cannot decide: 120 probes, and the contract asks for at least 300"
    assert obstacles[1] == "task[facts]: cannot decide: 12 probes, and the contract asks for at least 300"
    assert len(obstacles) == 18
    assert ended.out.splitlines()[-1] == "2 of 20 gates can be decided"


def test_what_can_be_decided_ends_with_0(lenient: Path, quantaudit: Command) -> None:
    ended = quantaudit("contract", "check", lenient)
    assert ended.code == 0 and ended.out.splitlines()[-1] == "20 of 20 gates can be decided"
    assert "cannot decide" not in ended.out


@pytest.mark.parametrize("name", contract_names())
def test_tables_fit_an_80_column_terminal_in_plain_ascii(name: str, quantaudit: Command) -> None:
    text = quantaudit("contract", "check", name).out
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii() and "\x1b" not in text


def test_json_is_the_whole_check_and_nothing_else(lenient: Path, quantaudit: Command) -> None:
    ended = quantaudit("contract", "check", lenient, "--json")
    found = json.loads(ended.out)
    assert ended.err == "" and found["contract_digest"] == load_contract(lenient).digest()
    assert (found["num_probes"], found["probes_digest"]) == (120, few_probes().digest())
    assert Counter(gate["name"].partition("[")[0] for gate in found["gates"]) == {
        "integrity": 1, "degeneracy": 1, "fidelity": 1, "task": 7, "margin": 7, "refusal": 1, "over-refusal": 1,
        "contrast": 1,
    }  # fmt: skip


def test_an_earlier_report_gives_the_spreads(lenient: Path, written: Path, quantaudit: Command) -> None:
    quantaudit("run", written / "plain", "--lo", written / "other", "--contract", lenient, "--threads", "1", "-o", "r")
    ended = quantaudit("contract", "check", lenient, "--from", "r/report.json", "--json")
    report = {c.name: c.estimate for c in read_report(Path("r/report.json")).clauses}
    for gate in json.loads(ended.out)["gates"]:
        seen = [row for row in gate["detectable"] if row["is_observed"]]
        estimate = report[gate["name"]]
        if gate["is_rate"] and estimate is not None:
            assert [row["assumed"] for row in seen] == [estimate.discordant_rate]
    text = quantaudit("contract", "check", lenient, "--from", "r/report.json").out
    assert max(map(len, text.splitlines())) <= 80 and " flips " in text and " sd " in text


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from quantaudit.cli.main import _run
codes = [_run(["contract", "check", "smoke"]), _run(["contract", "show", "strict"]), _run(["contract", "list"])]
codes.append(_run(["contract", "check", "--help"]))
print(codes, [name for name in ("torch", "pandas", "altair") if name in sys.modules])
"""
    assert interpret(code, cwd=tmp_path).splitlines()[-1] == "[0, 0, 0, 0] []"


@pytest.mark.parametrize("name", contract_names())
def test_what_is_shown_loads_again_as_the_same_clauses(name: str, quantaudit: Command, tmp_path: Path) -> None:
    ended = quantaudit("contract", "show", name)
    assert ended.code == 0 and ended.err == ""
    again = tmp_path / "again.toml"
    again.write_text(ended.out)
    assert load_contract(again) == load_contract(name).model_copy(update={"base": None})
    assert ended.out.splitlines()[0] == f"# digest {load_contract(name).digest()}"


def test_every_value_says_which_contract_it_comes_from(lenient: Path, quantaudit: Command) -> None:
    lines = quantaudit("contract", "show", lenient).out.splitlines()
    assert f"min_probes = {PROBES_A_FAMILY}  # lenient" in lines
    clause = lines[lines.index('name = "task"') : lines.index('name = "margin"')]
    assert "margin = 0.5  # lenient" in clause and 'observer = "accuracy"  # default' in clause
    whole = json.loads(quantaudit("contract", "show", lenient, "--json").out)
    assert whole["clause_origins"]["task"]["margin"] == "lenient" and whole["bases"] == ["default"]
    assert Contract.model_validate(whole["contract"]) == load_contract(lenient)
    assert "#" not in quantaudit("contract", "show", "default").out.partition("\n")[2]


def test_strange_texts_survive_being_shown(tmp_path: Path, quantaudit: Command) -> None:
    path = tmp_path / "strange.toml"
    reason = 'a "quoted" \\ back\\\\slash, \t tab, ' + "word " * 30 + '""" end\x7f'
    text = json.dumps(reason).replace("\x7f", "\\u007f")
    path.write_text(f'name = "s"\n[[clauses]]\nname = "a"\nstage = "task"\nobserver = "nll"\nreason = {text}\n')
    shown = quantaudit("contract", "show", path).out
    assert tomllib.loads(shown)["clauses"][0]["reason"].split() == reason.split()


def test_the_bundled_ones_are_listed(quantaudit: Command) -> None:
    assert quantaudit("contract", "list").out == quantaudit("list", "contracts").out
    assert quantaudit("contract", "list", "--json").out == quantaudit("list", "contracts", "--json").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("contract", "check", "defualt"), "did you mean default"),
        (("contract", "check", "--probes", "world/audits"), "the probe set 'world/audits'"),
        (("contract", "check", "--from", "no.json"), "no.json cannot be read"),
        (("contract", "chek"), "Did you mean 'check'? See `quantaudit contract --help`"),
        (("contract", "show"), "See `quantaudit contract --help`"),
    ],
)
def test_wrong_input_is_one_line(arguments: tuple[str, ...], said: str, quantaudit: Command) -> None:
    ended = quantaudit(*arguments)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err


def test_the_group_alone_shows_its_help(quantaudit: Command) -> None:
    ended = quantaudit("contract")
    assert ended.code == 2 and ended.out == "" and ended.err.startswith("Usage: quantaudit contract ")
    assert all(f"\n  {verb} " in ended.err for verb in ("check", "show", "list"))


@pytest.mark.parametrize("verb", [(), ("check",), ("show",), ("list",)])
def test_help_is_plain_and_fits_sixty_columns(
    verb: tuple[str, ...], quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ended = quantaudit("contract", *verb, "--help")
    assert ended.code == 0 and ended.out.isascii() and "\x1b" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= 60


def test_a_contract_chooses_how_many_probes_are_run(lenient: Path, written: Path, quantaudit: Command) -> None:
    lenient.write_text(LENIENT.replace(f"= {PROBES_A_FAMILY}", "= 8") + "probes_per_family = 8\n" + WIDE)
    arguments = ("run", written / "plain", "--lo", written / "other", "--contract", lenient, "--threads", "1", "-o")
    for number in range(2):
        quantaudit(*arguments, f"out{number}")
    reports = [read_report(Path(f"out{number}") / "report.json") for number in range(2)]
    assert [r.run.earlier_audits for r in reports] == [0, 1]
    assert {f.num_probes for f in reports[0].probes.families} == {8}
    assert reports[0].probes.source.endswith("; 8 probes of each family, dealt over its clusters")
