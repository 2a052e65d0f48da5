"""Names, plug-ins and their faults: nothing is imported before it is asked for, and nothing takes another's name."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from quantaudit import __version__
from quantaudit.core.errors import InputError
from quantaudit.core.registry import Registry

GROUP = "quantaudit.test_things"
Thing = Callable[[float], float]
Install = Callable[[str, str], None]


def builtins() -> Mapping[str, Thing]:
    """The things that ship."""
    return {"square-root": math.sqrt, "exponential": math.exp, "world/sine": math.sin}


def adopt(name: str, value: object) -> Thing:
    """Takes what can be called."""
    if not callable(value):
        raise TypeError(f"a {type(value).__name__}, not a function")
    thing: Thing = value
    return thing


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
def registry() -> Registry[Thing]:
    """A registry with three built-ins."""
    return Registry(kind="thing", group=GROUP, builtins=builtins, adopt=adopt)


def test_a_builtin_is_loaded_by_its_bare_name(registry: Registry[Thing]) -> None:
    assert registry.load("square-root") is math.sqrt
    entry = registry.entries()[0]
    assert (entry.name, entry.package, entry.version) == ("square-root", "quantaudit", __version__)


def test_listing_names_imports_nothing(registry: Registry[Thing], install: Install) -> None:
    install("lazy_things", "one = this_module_does_not_exist:thing")
    assert registry.names() == ("square-root", "exponential", "world/sine", "lazy-things/one")
    assert "this_module_does_not_exist" not in sys.modules


def test_a_plug_in_is_called_by_package_and_name(registry: Registry[Thing], install: Install) -> None:
    install("My_Things", "floor = math:floor")
    entry = registry.entries()[-1]
    assert (entry.name, entry.package, entry.version, entry.error) == ("my-things/floor", "my-things", "1.5", None)
    assert registry.load("my-things/floor") is math.floor


def test_a_plug_in_cannot_take_the_place_of_a_builtin(registry: Registry[Thing], install: Install) -> None:
    install("rival", "square-root = math:floor")
    assert registry.load("square-root") is math.sqrt
    assert "rival/square-root" in registry.names()


def test_a_plug_in_that_fails_is_listed_with_its_error(registry: Registry[Thing], install: Install) -> None:
    install("broken", "a = math:no_such_name\nb = no_such_module:thing\nc = math:floor\nd = math\ne = math:pi")
    loaded = {entry.name: (entry.error, value) for entry, value in registry.load_all() if entry.package == "broken"}
    assert loaded["broken/c"] == (None, math.floor)
    for name, said in (("a", "no_such_name"), ("b", "no_such_module"), ("d", "module:attribute"), ("e", "a float")):
        error, value = loaded[f"broken/{name}"]
        assert value is None and error is not None and said in error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ZeroDivisionError('at import')", "ZeroDivisionError: at import"),
        ("raise OSError('two\\nlines')", "OSError: two lines"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_plug_in_that_raises_anything_stops_nobody_else(
    body: str, said: str, registry: Registry[Thing], install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    install("explosive", "boom = raises_on_import:thing")
    assert registry.load_all()[-1].entry.error == said
    assert registry.load("square-root") is not None
    with pytest.raises(InputError) as refused:
        registry.load("explosive/boom")
    assert f"explosive 1.5, which fails to load ({said})" in str(refused.value)


@pytest.mark.parametrize(
    ("distribution", "lines", "said"),
    [
        ("twice", "same = math:floor\nsame = math:ceil", "'twice/same', claimed by math:floor and by math:ceil"),
        ("world", "sine = math:floor", "'world/sine', claimed by quantaudit and by math:floor"),
    ],
)
def test_two_claims_to_a_name_are_an_error(
    distribution: str, lines: str, said: str, registry: Registry[Thing], install: Install
) -> None:
    install(distribution, lines)
    for ask in (registry.names, registry.load_all, lambda: registry.load(f"{distribution}/same")):
        with pytest.raises(InputError) as refused:
            ask()
        assert said in str(refused.value)
    assert registry.load("square-root") is math.sqrt, "who asks for a built-in is not stopped"


def test_an_unknown_name_gets_the_nearest_ones(registry: Registry[Thing]) -> None:
    with pytest.raises(InputError, match="did you mean square-root"):
        registry.load("squareroot")
    with pytest.raises(InputError, match="one of square-root, exponential, world/sine; choose from"):
        registry.load("zzz")


def test_a_plug_in_is_adopted_once(
    registry: Registry[Thing], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("once", "floor = math:floor")
    first = registry.load("once/floor")
    monkeypatch.setattr(registry, "_adopt", lambda name, value: math.ceil)
    assert registry.load("once/floor") is first
