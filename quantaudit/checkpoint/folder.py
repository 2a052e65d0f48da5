"""Which weight files a checkpoint folder has: one safetensors file, or shards under an index. Pickles are refused.

A link to a file elsewhere is followed (download caches are made of them); a shard *name* that leaves the folder is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quantaudit.checkpoint.file_range import read_whole
from quantaudit.checkpoint.strict_json import parse_object, shown
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 1 << 29
_SUFFIX = ".safetensors"
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.safetensors")
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The files, and what the index says of them.

    Attributes:
        folder: The checkpoint.
        files: Paths inside it, sorted.
        weight_map: Tensor name to file name; `None` for a single file.
    """

    folder: Path
    files: tuple[Path, ...]
    weight_map: Mapping[str, str] | None


def find_weights(folder: Path) -> WeightFiles:
    """Finds the weight files of a checkpoint folder and checks that all are there.

    Raises:
        InputError: If this is no folder, it holds no safetensors or two sets of them, the index is wrong, or a shard
            is missing.
    """
    check_folder(folder)
    has_single, has_index = (folder / SINGLE_FILE).exists(), (folder / INDEX_FILE).exists()
    if not has_single and not has_index:
        raise _without_weights(folder)
    if not has_index:
        return WeightFiles(folder=folder, files=(folder / SINGLE_FILE,), weight_map=None)
    weight_map = _read_index(folder / INDEX_FILE)
    shards = sorted(set(weight_map.values()))
    if has_single and SINGLE_FILE not in shards:
        raise InputError(
            f"{folder} holds both {SINGLE_FILE} and an index of other files",
            expected="one set of weights",
            fix=f"remove {SINGLE_FILE} or {INDEX_FILE}",
        )
    _check_shards(folder, shards)
    return WeightFiles(folder=folder, files=tuple(folder / shard for shard in shards), weight_map=weight_map)


def check_folder(path: Path) -> None:
    """Checks that the path is a folder with something in it.

    Raises:
        InputError: Otherwise; a pickle is named as such.
    """
    expected = f"a folder with config.json and {SINGLE_FILE}, or shards and {INDEX_FILE}"
    if not _is_readable(path):
        raise InputError(
            f"{path} does not exist or cannot be read",
            expected=expected,
            fix="check the path; it is never taken for a hub name",
        )
    if not path.is_dir():
        if path.suffix in _PICKLE_SUFFIXES:
            raise _is_pickle(path)
        raise InputError(f"{path} is a file", expected=expected, fix=f"give its folder, {path.parent}")
    if not any(path.iterdir()):
        raise InputError(f"{path} is empty", expected=expected, fix="finish the download or copy")


def _is_readable(path: Path) -> bool:
    try:
        return path.exists() and os.access(path, os.R_OK)
    except OSError:
        return False


def _without_weights(folder: Path) -> InputError:
    names = sorted(entry.name for entry in folder.iterdir())
    pickles = [name for name in names if Path(name).suffix in _PICKLE_SUFFIXES]
    loose = [name for name in names if name.endswith(_SUFFIX)]
    if loose:
        return InputError(
            f"{folder} holds {shown(loose[0])} but no {INDEX_FILE}",
            expected="shards with their index",
            fix="add the index",
        )
    if pickles:
        return _is_pickle(folder / pickles[0])
    return InputError(
        f"{folder} holds no {SINGLE_FILE}", expected=f"{SINGLE_FILE} or {INDEX_FILE}", fix="check the path"
    )


def _is_pickle(path: Path) -> InputError:
    return InputError(
        f"{path} is a pickle, which can run code, and is never loaded",
        expected=f"safetensors ({SINGLE_FILE})",
        fix="convert the checkpoint to safetensors in a sandbox, from a source you trust",
    )


def _read_index(path: Path) -> dict[str, str]:
    fields = parse_object(read_whole(path, MAX_INDEX_BYTES), str(path))
    value = fields.get("weight_map")
    if not isinstance(value, dict) or not value:
        raise _bad_index(path, "has no weight_map", "an object: tensor name to file name")
    return {name: _shard_name(path, name, shard) for name, shard in value.items()}


def _shard_name(path: Path, name: str, value: Json) -> str:
    """Returns the file name that the index gives to a tensor: inside the folder, nothing else."""
    if not isinstance(value, str):
        raise _bad_index(path, f"gives {shown(name)} to no file name", "a file name for every tensor")
    if _SHARD.fullmatch(value) is None:
        expected = f"the name of a *{_SUFFIX} file in the same folder, of letters, digits and ._-"
        raise _bad_index(path, f"gives {shown(name)} to {shown(value)}", expected)
    return value


def _bad_index(path: Path, problem: str, expected: str) -> InputError:
    return InputError(
        f"{path} {problem}", expected=expected, fix="fetch the index again, or rebuild it from the shards"
    )


def _check_shards(folder: Path, shards: list[str]) -> None:
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise InputError(
            f"{folder} lacks {len(missing)} of {len(shards)} shards, first {shown(missing[0])}",
            expected=f"every file that {INDEX_FILE} names",
            fix="finish the download or copy",
        )
