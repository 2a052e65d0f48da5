"""`list` and `show`: all there is, whole and greppable, and as JSON."""

from __future__ import annotations

import json

import pytest

from quantaudit.api import ListEntry
from quantaudit.cli.entries import lay_out
from quantaudit.core.recipe_file import contract_names, load_contract, load_recipe, recipe_names
from quantaudit.numerics.catalogue import get_scheme, scheme_names
from tests.cli.command import Command, is_one_line

NAMES = {"schemes": scheme_names(), "recipes": recipe_names(), "contracts": contract_names()}


@pytest.mark.parametrize("kind", NAMES)
def test_every_name_is_listed_on_a_line_of_its_own(kind: str, quantaudit: Command) -> None:
    ended = quantaudit("list", kind)
    lines = ended.out.splitlines()
    assert ended.code == 0 and ended.err == ""
    assert lines[0].startswith("from quantaudit ")
    assert tuple(line.split()[0] for line in lines[1:]) == tuple(NAMES[kind])
    assert all(len(line.split()) > 1 for line in lines[1:])


@pytest.mark.parametrize("kind", ["schemes", "recipes", "contracts", "observers", "probes"])
def test_json_is_all_that_is_on_stdout(kind: str, quantaudit: Command) -> None:
    entries = json.loads(quantaudit("list", kind, "--json").out)
    assert entries and all(set(entry) == {"name", "origin", "description", "error"} for entry in entries)
    assert quantaudit("list", kind.removesuffix("s"), "--json").out == quantaudit("list", kind, "--json").out


def test_a_narrow_terminal_gets_wrapped_lines_with_nothing_cut() -> None:
    long = ListEntry(name="a-name", origin="here 1", description="word " * 40)
    text = lay_out((long, ListEntry(name="b", origin="there 2", description="short")), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("word") == 40
    assert "from here 1:" in text and "from there 2:\nb       short\n" in text


@pytest.mark.parametrize("name", scheme_names())
def test_a_scheme_is_shown_whole(name: str, quantaudit: Command) -> None:
    shown = json.loads(quantaudit("show", "scheme", name).out)
    scheme = get_scheme(name)
    assert shown.pop("arithmetic_digest") == scheme.arithmetic_digest
    assert shown.pop("encoding_digest") == scheme.encoding_digest
    assert type(scheme).model_validate_json(json.dumps(shown)) == scheme


def test_recipes_and_contracts_are_shown_whole(quantaudit: Command) -> None:
    for name in recipe_names():
        assert json.loads(quantaudit("show", "recipe", name).out)["digest"] == load_recipe(name).digest()
    for name in contract_names():
        assert json.loads(quantaudit("show", "contracts", name).out)["digest"] == load_contract(name).digest()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "models"), "schemes, recipes, contracts, observers, probes or backends"),
        (("show", "models", "x"), "scheme, recipe, contract or backend"),
        (("show", "scheme", "mxfp4-evn"), "did you mean mxfp4-even"),
        (("show", "recipe", "k3"), "the recipe 'k3'"),
        (("show", "contract", "./no.toml"), "expected a file that exists"),
    ],
)
def test_a_name_that_is_not_there_is_refused(arguments: tuple[str, ...], said: str, quantaudit: Command) -> None:
    ended = quantaudit(*arguments)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err
