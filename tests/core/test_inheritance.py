"""Contracts over a base: only what is given changes, everything has one origin, and what has no effect is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.core.contract import Contract, Kind
from quantaudit.core.errors import InputError
from quantaudit.core.recipe_file import load_contract, resolve_contract

NEW = '[[clauses]]\nname = "new"\nstage = "task"\nobserver = "accuracy"\nmargin = 0.5\n'
TIGHTER = '[[clauses]]\nname = "fidelity"\nmargin = 0.01\n'


def write(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'name = "{path.stem}"\n{text}', encoding="utf-8")
    return path


def names(contract: Contract) -> list[str]:
    return [clause.name for clause in contract.clauses]


def test_a_clause_keeps_its_place_and_all_that_is_not_given(tmp_path: Path) -> None:
    default = load_contract("default")
    mine = load_contract(write(tmp_path, 'base = "default"\nmin_probes = 10\n' + TIGHTER))
    before = {c.name: c for c in default.clauses}
    assert names(mine) == names(default)
    assert [c for c in mine.clauses if c != before[c.name]] == [before["fidelity"].model_copy(update={"margin": 0.01})]
    assert (mine.name, mine.base, mine.description) == ("mine", "default", "")
    assert (mine.min_probes, mine.min_clusters) == (10, default.min_clusters)


def test_any_field_of_a_clause_can_be_given(tmp_path: Path) -> None:
    text = (
        '[[clauses]]\nname = "task"\nstage = "safety"\nobserver = "answer-margin"\nbehaviours = ["comply"]\n'
        'each_family = false\ndirection = "both"\nalpha = 0.01\nkind = "alarm"\nquotient = "argmax"\nreason = "so"\n'
    )
    mine = next(c for c in load_contract(write(tmp_path, 'base = "default"\n' + text)).clauses if c.name == "task")
    own = load_contract(write(tmp_path, text, "own")).clauses[0]
    assert mine == own.model_copy(update={"margin": 0.02})
    assert mine.kind is Kind.ALARM


def test_new_clauses_come_last_and_dropped_ones_are_gone(tmp_path: Path) -> None:
    mine = load_contract(write(tmp_path, 'base = "default"\ndrop = ["contrast", "task"]\n' + NEW))
    assert names(mine) == [n for n in names(load_contract("default")) if n not in ("contrast", "task")] + ["new"]


def test_a_base_is_found_beside_its_file_and_bases_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'base = "default"\ndrop = ["contrast"]\n' + TIGHTER, "shared/team")
    top = write(tmp_path, 'base = "../shared/team.toml"\n[[clauses]]\nname = "fidelity"\nalpha = 0.01\n', "here/top")
    monkeypatch.chdir(tmp_path)
    for given in (top, "here/top.toml"):
        resolved = resolve_contract(given)
        fidelity = next(c for c in resolved.contract.clauses if c.name == "fidelity")
        assert (fidelity.margin, fidelity.alpha) == (0.01, 0.01)
        assert (resolved.contract.base, resolved.bases) == ("team", ("team", "default"))
        assert resolved.clause_origins["fidelity"] == {
            **dict.fromkeys(("stage", "observer", "direction", "kind", "quotient", "reason"), "default"),
            **{"name": "top", "margin": "team", "alpha": "top"},
        }
        assert resolved.dropped == {"contrast": "team"}
        assert resolved.origins["min_probes"] == "default"


def test_a_dropped_clause_can_be_given_again_further_up(tmp_path: Path) -> None:
    write(tmp_path, 'base = "default"\ndrop = ["contrast"]\n', "team")
    again = NEW.replace("new", "contrast")
    resolved = resolve_contract(write(tmp_path, 'base = "team.toml"\n' + again, "top"))
    assert names(resolved.contract)[-1] == "contrast"
    assert resolved.dropped == {} and set(resolved.clause_origins["contrast"].values()) == {"top"}


def test_a_file_named_as_a_bundled_contract_can_build_on_it(tmp_path: Path) -> None:
    mine = load_contract(write(tmp_path, 'base = "default"\n' + TIGHTER, "default"))
    assert mine.clauses[2].margin == 0.01


FAULTS = {
    "unknown base": ('base = "defualt"', r"base = 'defualt'; expected one of .*default.*; did you mean default\?"),
    "base that is not there": ('base = "./no.toml"', "no.toml; expected a file that exists"),
    "base that is no name": ("base = 3\n" + NEW, "base = 3; expected a valid string"),
    "its own base": ('base = "mine.toml"', "is its own base; expected a base that does not lead back"),
    "drop of an unknown name": ('base = "default"\ndrop = ["contrst"]', r"drop names 'contrst'.*mean contrast\?"),
    "drop of an own name": ('base = "default"\ndrop = ["new"]\n' + NEW, r"drop names 'new'.*remove 'new' from drop"),
    "drop twice": ('base = "default"\ndrop = ["task", "task"]', "drop names 'task' twice"),
    "drop that is no list": ('base = "default"\ndrop = "task"', "drop = 'task'; expected an array of clause names"),
    "drop of everything": ('base = "one.toml"\ndrop = ["new"]', r"without clauses.*or drop fewer"),
    "drop without base": ('drop = ["task"]\n' + NEW, "drop without a base"),
    "dropped and given": (
        'base = "default"\ndrop = ["task"]\n[[clauses]]\nname = "task"\nmargin = 0.1',
        "the clause 'task' is both dropped and given",
    ),
    "nothing given": (
        'base = "default"\n[[clauses]]\nname = "task"',
        "the clause 'task' of the base is named, and nothing of it is changed",
    ),
    "given twice": ('base = "default"\n' + TIGHTER + TIGHTER, "with two clauses 'fidelity'"),
    "new twice": ('base = "default"\n' + NEW + NEW, "with two clauses 'new'"),
    "wrong value": (
        'base = "default"\n' + NEW + TIGHTER.replace("0.01", "-1.0"),
        r"clauses\[1\]\.margin = -1\.0; expected greater than 0",
    ),
    "wrong key": ('base = "default"\n' + TIGHTER + "margn = 1", r"clauses\[0\]\.margn.*did you mean margin\?"),
    "new and incomplete": ('base = "default"\n[[clauses]]\nname = "taks"\nmargin = 1', r"no key clauses\[0\]\.stage"),
    "without a name": ('base = "default"\n[[clauses]]\nmargin = 0.1', r"no key clauses\[0\]\.name"),
    "clauses that are none": ('base = "default"\nclauses = 3', "clauses = 3; expected a valid array"),
    "misspelt drop": ('base = "default"\ndorp = ["task"]', r"the unknown key dorp.*did you mean drop\?"),
    "another schema below": ('base = "old.toml"', "old.toml: schema_version = 2"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_its_file_and_its_cure(fault: str, tmp_path: Path) -> None:
    write(tmp_path, NEW, "one")
    write(tmp_path, "schema_version = 2", "old")
    text, message = FAULTS[fault]
    with pytest.raises(InputError, match=message) as caught:
        load_contract(write(tmp_path, text))
    assert str(tmp_path) in caught.value.given and "\n" not in str(caught.value)


def test_bases_in_a_circle_are_named(tmp_path: Path) -> None:
    write(tmp_path, 'base = "b.toml"', "a")
    write(tmp_path, 'base = "sub/../c.toml"', "b")
    (tmp_path / "sub").mkdir()
    write(tmp_path, 'base = "./a.toml"', "c")
    with pytest.raises(InputError, match=r"a\.toml is its own base.*correct base in one of a\.toml, b\.toml, c\.toml"):
        load_contract(tmp_path / "a.toml")


def test_bases_that_go_on_and_on_are_refused(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path, f'base = "c{number + 1}.toml"', f"c{number}")
    with pytest.raises(InputError, match=r"c17\.toml is base number 17; expected at most 16"):
        load_contract(tmp_path / "c0.toml")


def test_a_fault_of_a_base_is_said_of_the_base(tmp_path: Path) -> None:
    write(tmp_path, NEW.replace("0.5", "-0.5"), "team")
    with pytest.raises(InputError, match=r"team\.toml: clauses\[0\]\.margin = -0\.5"):
        load_contract(write(tmp_path, 'base = "team.toml"'))
