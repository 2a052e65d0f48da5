"""Recipes and contracts as TOML files: bundled ones by name, others by path, and every fault named by its key.

A name with a slash or a dot is a path, and so is any other name that is a file here and not bundled. A path that does
not exist is said to be missing; it is never looked up anywhere else, and a bundled name never gives way to a stray
file of that name. Types are strict: `"300"` is not a number and `"yes"` is not a truth value.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from quantaudit.core.contract import Contract
from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Recipe
from quantaudit.core.resources import contracts_folder, recipes_folder
from quantaudit.core.serial import Frozen

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# os.path, not Path: its tests answer False instead of raising for a name that is too long to be one.
MAX_BYTES = 1 << 20  # a recipe is a page long; whatever is larger is another file given by mistake
_SUFFIX = ".toml"
_SCHEMA_VERSION = 1

Root = TypeVar("Root", bound=Frozen)


def recipe_names() -> tuple[str, ...]:
    """Lists the bundled recipes."""
    return _names(recipes_folder())


def contract_names() -> tuple[str, ...]:
    """Lists the bundled contracts."""
    return _names(contracts_folder())


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Reads a bundled recipe by name, or a recipe file by path.

    Raises:
        InputError: If there is no such recipe, or the file is not a recipe.
    """
    return _read(_locate(name_or_path, "recipe", recipes_folder()), "recipe", Recipe)


def load_contract(name_or_path: str | Path) -> Contract:
    """Reads a bundled contract by name, or a contract file by path.

    Raises:
        InputError: If there is no such contract, or the file is not a contract.
    """
    path = _locate(name_or_path, "contract", contracts_folder())
    contract = _read(path, "contract", Contract)
    repeated = [name for name, count in Counter(clause.name for clause in contract.clauses).items() if count > 1]
    if repeated or not contract.clauses:
        raise InputError(
            f"the contract file {path}, " + (f"with two clauses {repeated[0]!r}" if repeated else "without clauses"),
            expected="at least one clause, and a name of its own for each",
            fix="rename or add a [[clauses]] table",
        )
    return contract


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")))


def _locate(name_or_path: str | Path, kind: str, folder: Path) -> Path:
    text = str(name_or_path)
    bundled = _names(folder)
    looks_like_path = isinstance(name_or_path, Path) or any(mark in text for mark in ("/", os.sep, "."))
    if not looks_like_path and text in bundled:
        return folder / f"{text}{_SUFFIX}"
    if looks_like_path or os.path.isfile(text):
        return Path(text).expanduser()
    near = difflib.get_close_matches(text, bundled, n=3, cutoff=0.5)
    raise InputError(
        f"the {kind} {text!r}",
        expected=f"one of {', '.join(bundled)}, or the path of a {_SUFFIX} file",
        fix=f"did you mean {', '.join(near)}?" if near else f"choose a bundled {kind}, or write ./{text} for a file",
    )


def _read(path: Path, kind: str, root: type[Root]) -> Root:
    """Parses the file and validates it strictly, as JSON, where enums and tuples have a strict form."""
    document = _parse(path, kind)
    version = document.get("schema_version", _SCHEMA_VERSION)
    if version != _SCHEMA_VERSION:
        raise InputError(
            f"the {kind} file {path}: schema_version = {version!r}",
            expected=f"schema_version = {_SCHEMA_VERSION}, the only one this version of quantaudit reads",
            fix="install the version of quantaudit that the file was written for",
        )
    try:
        return root.model_validate_json(json.dumps(_plain(document)), strict=True)
    except ValidationError as error:
        raise _explain(error, document, f"the {kind} file {path}", root) from None


def _parse(path: Path, kind: str) -> dict[str, object]:
    what = f"the {kind} file {path}"
    if not os.path.exists(path):
        raise InputError(what, expected="a file that exists", fix="check the path: there is nothing of that name")
    if not os.path.isfile(path):
        raise InputError(what, expected="a file, not a folder", fix=f"name the {_SUFFIX} file inside it")
    if path.stat().st_size > MAX_BYTES:
        given = f"{what}, of {path.stat().st_size:,} bytes"
        raise InputError(given, expected=f"at most {MAX_BYTES:,} bytes", fix=f"check that it is a {kind}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{what}: {error}", expected="TOML in UTF-8", fix="correct that place") from None
    except OSError as error:
        raise InputError(f"{what}: {error.strerror}", expected="a readable file", fix="check its permissions") from None


def _plain(value: object) -> object:
    """Returns `value` in JSON's types; dates and non-finite numbers become a type that no key accepts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return {"neither text nor a finite number": str(value)}


class _Fault(NamedTuple):
    given: str
    expected: str
    fix: str
    hint: str  # the shorter of the two, for a list of faults


def _explain(error: ValidationError, document: dict[str, object], what: str, root: type[BaseModel]) -> InputError:
    faults = [_describe(detail, document, root) for detail in error.errors(include_url=False)]
    if len(faults) == 1:
        return InputError(f"{what}: {faults[0].given}", expected=faults[0].expected, fix=faults[0].fix)
    listed = "; ".join(f"{fault.given} ({fault.hint})" for fault in faults)
    kind = root.__name__.lower()
    return InputError(f"{what}: {len(faults)} faults: {listed}", expected=f"the keys of a {kind}", fix="correct each")


def _describe(detail: ErrorDetails, document: dict[str, object], root: type[BaseModel]) -> _Fault:
    key = _spell(detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields_at(root, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=3)
        fix = f"did you mean {', '.join(near)}?" if near else f"remove {key}"
        return _Fault(f"the unknown key {key}", f"a key among {', '.join(known)}", fix, fix)
    if detail["type"] == "missing":
        return _Fault(f"no key {key}", f"{key} to be there", f"add {key}", "it is required")
    if detail["type"] == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return _Fault(f"{key}: {message}", f"{key} without that", f"correct {key}", "refused")
    expected = detail["msg"].removeprefix("Input should be ")
    given = f"{key} = {_value_at(document, detail['loc'])!r}"
    return _Fault(given, expected, f"correct {key}", f"expected {expected}")


def _spell(location: tuple[int | str, ...]) -> str:
    """Writes a location as a person would: `rules[0].match`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _value_at(value: object, location: tuple[int | str, ...]) -> object:
    for part in location:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
    return value


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Returns the keys of the table at a location, following field types through tuples."""
    for part in location:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return tuple(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
