"""The folders that travel with the package: recipes, contracts, the embedded model, and its repaired twin.

Recipes lie at the top of a checkout, where people look for them, and inside the package in a wheel; both places are
known here and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

from quantaudit.core.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def recipes_folder() -> Path:
    """Returns the folder of the bundled recipes.

    Raises:
        InputError: If the installation is incomplete.
    """
    return _first_folder("recipes", _PACKAGE / "_recipes", _PACKAGE.parent / "recipes")


def contracts_folder() -> Path:
    """Returns the folder of the bundled contracts, inside that of the recipes.

    Raises:
        InputError: If the installation is incomplete.
    """
    return _first_folder("contracts", recipes_folder() / "contracts")


def embedded_model_folder() -> Path:
    """Returns the folder of the embedded model: config.json, model.safetensors, card.json.

    Raises:
        InputError: If the installation is incomplete.
    """
    return _first_folder("embedded model", _PACKAGE / "checkpoint" / "embedded")


def repaired_model_folder(*, must_exist: bool = True) -> Path:
    """Returns the folder of the embedded model after quantization-aware training, its experts packed.

    Args:
        must_exist: Whether a missing folder is an error; False for who is about to write it.

    Raises:
        InputError: If the installation is incomplete.
    """
    folder = _PACKAGE / "checkpoint" / "repaired"
    return _first_folder("repaired model", folder) if must_exist else folder


def _first_folder(what: str, *candidates: Path) -> Path:
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise InputError(
        f"the installation in {_PACKAGE}",
        expected=f"the bundled {what} in {' or '.join(str(c) for c in candidates)}",
        fix="install quantaudit again",
    )
