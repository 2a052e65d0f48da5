"""Names, plug-ins and their faults: nothing is imported before it is asked for, and nothing takes another's name."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.registry import Registry

GROUP = "quantaudit.test_things"
Install = Callable[[str, str], None]

BUILTINS = {"square-root": "math:sqrt", "join": "os:path.join", "untouched": "quantaudit_module_that_is_not:thing"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution (name, lines of its entry points) into a folder of its own."""

    def add(distribution: str, entry_points: str) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
        monkeypatch.syspath_prepend(str(folder))

    return add


@pytest.fixture
def registry() -> Registry[object]:
    """A registry with three built-ins."""
    return Registry(kind="thing", group=GROUP, builtins=BUILTINS)


def test_a_builtin_is_loaded_by_its_bare_name(registry: Registry[object]) -> None:
    assert registry.load("square-root") is math.sqrt
    assert registry.load("join") is os.path.join


def test_listing_imports_nothing(registry: Registry[object], install: Install) -> None:
    install("lazy_things", "one = this_module_does_not_exist:thing")
    assert registry.names() == ("square-root", "join", "untouched", "lazy-things/one")
    assert "this_module_does_not_exist" not in sys.modules


def test_a_plug_in_is_called_by_package_and_name(registry: Registry[object], install: Install) -> None:
    install("My_Things", "floor = math:floor")
    entry = registry.entries()[-1]
    assert (entry.name, entry.package, entry.version, entry.error) == ("my-things/floor", "my-things", "1.5", None)
    assert registry.load("my-things/floor") is math.floor


def test_a_plug_in_cannot_take_the_place_of_a_builtin(registry: Registry[object], install: Install) -> None:
    install("rival", "square-root = math:floor")
    assert registry.load("square-root") is math.sqrt
    assert "rival/square-root" in registry.names()


def test_a_plug_in_that_fails_is_listed_with_its_error(registry: Registry[object], install: Install) -> None:
    install("broken", "a = math:no_such_name\nb = no_such_module:thing\nc = math:floor\nd = math")
    errors = {entry.name: entry.error for entry in registry.check() if entry.package == "broken"}
    assert errors["broken/c"] is None
    assert "no_such_name" in str(errors["broken/a"])
    assert "no_such_module" in str(errors["broken/b"])
    assert "module:attribute" in str(errors["broken/d"])


def test_a_plug_in_that_raises_anything_stops_nobody_else(
    registry: Registry[object], install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("raise ZeroDivisionError('at import')")
    monkeypatch.syspath_prepend(str(tmp_path))
    install("explosive", "boom = raises_on_import:thing")
    assert registry.check()[-1].error == "ZeroDivisionError: at import"
    assert registry.load("square-root") is not None
    with pytest.raises(InputError, match=r"explosive 1\.5, which fails to load \(ZeroDivisionError: at import\)"):
        registry.load("explosive/boom")


def test_two_claims_to_a_name_are_an_error(registry: Registry[object], install: Install) -> None:
    install("twice", "same = math:floor\nsame = math:ceil")
    with pytest.raises(InputError, match="'twice/same', claimed by math:floor and by math:ceil"):
        registry.names()


def test_an_unknown_name_gets_the_nearest_ones(registry: Registry[object]) -> None:
    with pytest.raises(InputError, match="did you mean square-root"):
        registry.load("squareroot")


def test_a_broken_builtin_is_our_own_fault(registry: Registry[object]) -> None:
    with pytest.raises(ModuleNotFoundError):
        registry.load("untouched")
