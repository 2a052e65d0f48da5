"""Recipes and contracts as TOML files: bundled ones by name, others by path, and every fault named by its key.

A name with a slash or a dot is a path, and so is any other name that is a file here and not bundled. A path that does
not exist is said to be missing; it is never looked up anywhere else, and a bundled name never gives way to a stray
file of that name. Types are strict: `"300"` is not a number and `"yes"` is not a truth value.

A contract may have a `base`, a bundled name or a path relative to its own file; `inheritance` has the rules.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from quantaudit.core.contract import Contract
from quantaudit.core.errors import InputError
from quantaudit.core.inheritance import DROP, Layered, Table, inherit
from quantaudit.core.recipe import Recipe
from quantaudit.core.resources import contracts_folder, recipes_folder
from quantaudit.core.serial import Frozen

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# os.path, not Path: its tests answer False instead of raising for a name that is too long to be one.
MAX_BYTES = 1 << 20  # a recipe is a page long; whatever is larger is another file given by mistake
_SUFFIX = ".toml"
_SCHEMA_VERSION = 1
_MAX_BASES = 16  # nobody reads a contract through more files than that

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
    """Reads a bundled contract by name, or a contract file by path, with all that it inherits.

    Raises:
        InputError: If there is no such contract, or the file is not a contract.
    """
    return resolve_contract(name_or_path).contract


class ResolvedContract(Frozen):
    """A contract, and where each of its values comes from.

    Attributes:
        contract: All clauses, the inherited ones included.
        contract_digest: Its digest.
        bases: Names of the contracts it builds on, nearest first.
        origins: Root key -> name of the contract that gives it; keys that no file gives are left out.
        clause_origins: Clause name -> field -> name of the contract that gives it.
        dropped: Clause name -> name of the contract that drops it.
    """

    contract: Contract
    contract_digest: str
    bases: tuple[str, ...]
    origins: dict[str, str]
    clause_origins: dict[str, dict[str, str]]
    dropped: dict[str, str]


def resolve_contract(name_or_path: str | Path) -> ResolvedContract:
    """Reads a contract as `load_contract` does, and tells where each value comes from.

    Raises:
        InputError: As `load_contract`.
    """
    read = _read_contract(_locate(name_or_path, "contract", contracts_folder()), ())
    return ResolvedContract(
        contract=read.contract,
        contract_digest=read.contract.digest(),
        bases=read.bases,
        origins=read.layers.origins,
        clause_origins=read.layers.clause_origins,
        dropped=read.layers.dropped,
    )


class _ReadContract(NamedTuple):
    contract: Contract
    layers: Layered
    bases: tuple[str, ...]


def _read_contract(path: Path, through: tuple[str, ...]) -> _ReadContract:
    """Reads a contract over its base; `through` are the files that led here."""
    what, here = f"the contract file {path}", os.path.realpath(path)
    _check_ends(what, here, through)
    table = _parse(path, "contract")
    base = _read_contract(_locate_base(table["base"], path), (*through, here)) if _has_base(table) else None
    layers = inherit(table, None if base is None else base.layers, what)
    if not layers.table.get("clauses", True):
        expected, fix = "at least one clause", "add a [[clauses]] table" + (", or drop fewer" if base else "")
        raise InputError(f"{what}, without clauses", expected=expected, fix=fix)
    named = layers.table if base is None else layers.table | {"base": base.contract.name}
    contract = _validate(named, what, Contract, positions=layers.positions)
    return _ReadContract(contract, layers, () if base is None else (base.contract.name, *base.bases))


def _check_ends(what: str, here: str, through: tuple[str, ...]) -> None:
    """Checks that bases do not lead in a circle, or on and on."""
    if here in through:
        circle = through[through.index(here) :]
        names = ", ".join(os.path.basename(file) for file in circle)
        fix = f"correct base in one of {names}" if len(circle) > 1 else "remove base, or name another contract"
        raise InputError(f"{what} is its own base", expected="a base that does not lead back to it", fix=fix)
    if len(through) > _MAX_BASES:
        raise InputError(f"{what} is base number {len(through)}", expected=f"at most {_MAX_BASES}", fix="merge some")


def _has_base(table: Table) -> bool:
    return isinstance(table.get("base"), str)


def _locate_base(base: object, path: Path) -> Path:
    """Returns the file of a base: bundled, or beside the contract that names it."""
    try:
        return _locate(str(base), "contract", contracts_folder(), beside=path.parent)
    except InputError as error:
        given = f"the contract file {path}: base = {base!r}"
        raise InputError(given, expected=error.expected, fix=error.fix) from None


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")))


def _locate(name_or_path: str | Path, kind: str, folder: Path, *, beside: Path = Path()) -> Path:
    """Returns the file of a name or path; a path is relative to `beside`."""
    text = str(name_or_path)
    bundled = _names(folder)
    looks_like_path = isinstance(name_or_path, Path) or any(mark in text for mark in ("/", os.sep, "."))
    if not looks_like_path and text in bundled:
        return folder / f"{text}{_SUFFIX}"
    if looks_like_path or os.path.isfile(beside / text):
        return beside / Path(text).expanduser()
    near = difflib.get_close_matches(text, bundled, n=3, cutoff=0.5)
    raise InputError(
        f"the {kind} {text!r}",
        expected=f"one of {', '.join(bundled)}, or the path of a {_SUFFIX} file",
        fix=f"did you mean {', '.join(near)}?" if near else f"choose a bundled {kind}, or write ./{text} for a file",
    )


def _read(path: Path, kind: str, root: type[Root]) -> Root:
    return _validate(_parse(path, kind), f"the {kind} file {path}", root)


def _validate(table: Table, what: str, root: type[Root], *, positions: tuple[int | None, ...] = ()) -> Root:
    """Validates strictly, as JSON, where enums and tuples have a strict form.

    Args:
        table: The keys of the file, those it inherits included.
        what: The file, as messages name it.
        root: Type of the whole.
        positions: Number in the file of every clause of the table; faults are named by it.
    """
    try:
        return root.model_validate_json(json.dumps(_plain(table)), strict=True)
    except ValidationError as error:
        raise _explain(error, table, what, root, positions) from None


def _parse(path: Path, kind: str) -> Table:
    """Reads the keys of a file of the one schema version there is."""
    table = _parse_toml(path, kind)
    version = table.get("schema_version", _SCHEMA_VERSION)
    if version != _SCHEMA_VERSION:
        raise InputError(
            f"the {kind} file {path}: schema_version = {version!r}",
            expected=f"schema_version = {_SCHEMA_VERSION}, the only one this version of quantaudit reads",
            fix="install the version of quantaudit that the file was written for",
        )
    return table


def _parse_toml(path: Path, kind: str) -> Table:
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


def _explain(
    error: ValidationError, table: Table, what: str, root: type[BaseModel], positions: tuple[int | None, ...]
) -> InputError:
    faults = [_describe(detail, table, root, positions) for detail in error.errors(include_url=False)]
    if len(faults) == 1:
        return InputError(f"{what}: {faults[0].given}", expected=faults[0].expected, fix=faults[0].fix)
    listed = "; ".join(f"{fault.given} ({fault.hint})" for fault in faults)
    kind = root.__name__.lower()
    return InputError(f"{what}: {len(faults)} faults: {listed}", expected=f"the keys of a {kind}", fix="correct each")


def _describe(detail: ErrorDetails, table: Table, root: type[BaseModel], positions: tuple[int | None, ...]) -> _Fault:
    key = _spell(_as_in_file(detail["loc"], positions))
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
    given = f"{key} = {_value_at(table, detail['loc'])!r}"
    return _Fault(given, expected, f"correct {key}", f"expected {expected}")


def _as_in_file(location: tuple[int | str, ...], positions: tuple[int | None, ...]) -> tuple[int | str, ...]:
    """Returns a location with a clause's number in the file in place of its number among all, inherited ones too."""
    match location:
        case ("clauses", int(number), *rest) if number < len(positions) and positions[number] is not None:
            return ("clauses", positions[number] or 0, *rest)
    return location


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
    return (*model.model_fields, DROP) if model is Contract else tuple(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
