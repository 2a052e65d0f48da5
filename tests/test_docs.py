"""The documentation is the code's: every verb, scheme, recipe and contract is described, and the README's code runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import quantaudit
from quantaudit import api, registered
from quantaudit.cli.main import EXIT_CODES, app
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import contract_names, load_contract, load_recipe, recipe_names
from quantaudit.core.verdict import ExitCode
from quantaudit.numerics.catalogue import get_scheme, scheme_names
from quantaudit.probes import tokenizer
from quantaudit.probes.world import default_probes
from tests.checkpoint.tiny import TINY, save

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
GROUPS = [group.name for group in app.registered_groups if group.name]
VERBS = COMMANDS + GROUPS


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of the README in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_of_verbs_is_in_the_readme(group: str) -> None:
    assert f"quantaudit {group}" in README


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_is_in_the_readme_and_describes_itself(verb: str) -> None:
    command = next(c for c in app.registered_commands if verb in (c.name, getattr(c.callback, "__name__", "")))
    assert command.short_help and command.callback is not None and command.callback.__doc__
    if blocks("python"):  # the README is written
        assert f"quantaudit {verb}" in README


@pytest.mark.parametrize("name", scheme_names())
def test_every_scheme_says_where_it_comes_from(name: str) -> None:
    assert len(get_scheme(name).source) > 10


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_describes_itself_and_opens_with_its_source(name: str) -> None:
    assert len(load_recipe(name).description) > 20
    assert (ROOT / "recipes" / f"{name}.toml").read_text("utf-8").startswith("# Source: ")


@pytest.mark.parametrize("name", contract_names())
def test_every_contract_gives_a_reason_for_every_gate(name: str) -> None:
    contract = load_contract(name)
    assert len(contract.description) > 20
    assert all(len(clause.reason) > 20 for clause in contract.clauses if clause.kind.value == "gate")


def test_every_recipe_and_contract_is_found_from_the_readme_or_the_changelog() -> None:
    text = README + (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert [name for name in (*recipe_names(), *contract_names()) if name not in text] == []


def test_every_public_name_has_a_docstring() -> None:
    for name in quantaudit.__all__:
        value = getattr(quantaudit, name)
        assert name == "__version__" or value.__doc__, name


def test_every_exit_code_is_in_the_table() -> None:
    assert all(re.search(rf"^ +{int(code)}  \w", EXIT_CODES, flags=re.M) for code in ExitCode)


def test_every_command_of_the_readme_is_one_of_ours() -> None:
    commands = re.findall(r"^\$? ?quantaudit ([a-z]+)", "\n".join(blocks("(?:sh|bash|console|text)?")), flags=re.M)
    assert set(commands) <= set(VERBS)


@pytest.mark.parametrize("code", blocks("python"))
def test_the_code_of_the_readme_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that the snippet names are tiny models here, and a few probes stand for all."""
    config = replace(
        TINY,
        vocab_size=tokenizer.VOCAB_SIZE,
        bos_token_id=tokenizer.BOS,
        eos_token_id=tokenizer.EOS,
        pad_token_id=tokenizer.PAD,
    )
    model = save(tmp_path / "tiny", config=config)
    for path in re.findall(r'"((?:[\w.-]+/)+[\w.-]+)"', code):
        if "." not in path.rpartition("/")[2] and not (tmp_path / path).exists():
            shutil.copytree(model, tmp_path / path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "embedded_model_folder", lambda: model)
    monkeypatch.setattr(registered, "default_probes", lambda split: default_probes(Split.AUDIT, 6))
    monkeypatch.setattr(api, "free_cores", lambda: 1)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


def test_the_readme_has_no_placeholder_left() -> None:
    assert "@@" not in README
