"""The bundled folders are found in a checkout and in a wheel, and a missing one is said to be missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantaudit.core import resources
from quantaudit.core.errors import InputError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package folder in place of the real one."""
    folder = tmp_path / "quantaudit"
    folder.mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", folder)
    return folder


def test_recipes_lie_at_the_top_of_a_checkout(package: Path) -> None:
    (package.parent / "recipes" / "contracts").mkdir(parents=True)
    assert resources.recipes_folder() == package.parent / "recipes"
    assert resources.contracts_folder() == package.parent / "recipes" / "contracts"


def test_recipes_lie_in_the_package_in_a_wheel(package: Path) -> None:
    (package / "_recipes" / "contracts").mkdir(parents=True)
    (package.parent / "recipes").mkdir()  # somebody else's folder beside site-packages
    assert resources.recipes_folder() == package / "_recipes"
    assert resources.contracts_folder() == package / "_recipes" / "contracts"


@pytest.mark.parametrize(
    "find", [resources.recipes_folder, resources.contracts_folder, resources.embedded_model_folder]
)
@pytest.mark.usefixtures("package")
def test_an_incomplete_installation_says_so(find: Callable[[], Path]) -> None:
    with pytest.raises(InputError, match="install quantaudit again"):
        find()
