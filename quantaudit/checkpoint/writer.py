"""Writes a checkpoint folder in the Kimi K3 layout: all of it, or nothing.

Everything goes into a temporary folder beside the target, is flushed to the disk, and is renamed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quantaudit.checkpoint.config_export import export_packed_config
from quantaudit.checkpoint.config_json import CONFIG_FILE
from quantaudit.checkpoint.folder import INDEX_FILE, SINGLE_FILE
from quantaudit.checkpoint.names import ExpertStack, dense_slots, parse_expert
from quantaudit.checkpoint.packed import MODELOPT_NVFP4, Packing
from quantaudit.checkpoint.serialize import NamedTensor, write_safetensors
from quantaudit.checkpoint.unstack import Parameters, layout_tensors, pad
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Json, write_atomically
from quantaudit.model.config import ModelConfig


def write_checkpoint(
    path: Path,
    config: ModelConfig,
    parameters: Parameters,
    *,
    scheme: Scheme | None,
    shard_bytes: int | None,
    nvfp4: Packing = MODELOPT_NVFP4,
    is_partial: bool = False,
) -> None:
    """Writes a checkpoint that `open_checkpoint` reads back bit for bit.

    Memory stays at one shard where `parameters` is lazy.

    Args:
        path: Folder to create; an empty one may be there.
        config: The model.
        parameters: Name in the model and value of each parameter, experts stacked `[E, O, I]`. Tensors are stored as
            they are, bf16 or fp32; quantized experts are packed.
        scheme: Quantizes and packs the experts that are tensors; `None` leaves them as they are.
        shard_bytes: Size at which a shard is closed; `None` writes one file.
        nvfp4: Convention in which NVFP4 is written: the one of compressed-tensors rarely holds the upper scales.
        is_partial: Whether experts that are not packed are meant to be: the configuration then names those that are,
            and otherwise declares all of them, as the release does.

    Raises:
        InputError: If the folder is not empty, or the parameters do not fit the configuration or the layout.
    """
    _check_target(path)
    if shard_bytes is not None and shard_bytes <= 0:
        raise InputError(f"shards of {shard_bytes} bytes", expected="a positive size, or None", fix="raise it")
    slots = {slot.name: slot for slot in dense_slots(config)}
    stored = (pad(named, slots) for named in layout_tensors(parameters, config, scheme, nvfp4=nvfp4))
    with _folder_in_place(path) as folder:
        packings = _write_weights(folder, stored, shard_bytes)
        write_atomically(folder / CONFIG_FILE, export_packed_config(config, packings, is_partial=is_partial))


def _check_target(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path} is there already", expected="a new or an empty folder", fix="remove it or choose another"
        )


@contextmanager
def _folder_in_place(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that takes the place of `path` if nothing fails, and vanishes otherwise."""
    folder: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        yield folder
        folder.chmod(0o755)
        _flush_folder(folder)
        os.rename(folder, path)
        _flush_folder(path.parent)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            expected="a writable place",
            fix="check path, space and rights",
        ) from error
    finally:
        if folder is not None and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_weights(folder: Path, tensors: Iterable[NamedTensor], shard_bytes: int | None) -> dict[ExpertStack, Packing]:
    """Writes the weight files and, for shards, their index; returns how stacks are packed."""
    packings: dict[ExpertStack, Packing] = {}
    names_by_shard: list[list[str]] = []
    total_bytes = 0
    for shard in _cut(tensors, shard_bytes):
        write_safetensors(folder / _part_name(len(names_by_shard)), shard)
        names_by_shard.append([named.name for named in shard])
        packings |= {_stack_of(named.name): named.packing for named in shard if named.packing is not None}
        total_bytes += sum(named.num_bytes for named in shard)
    if shard_bytes is None:
        (folder / _part_name(0)).rename(folder / SINGLE_FILE)
    else:
        _name_shards(folder, names_by_shard, total_bytes)
    return packings


def _stack_of(name: str) -> ExpertStack:
    tensor = parse_expert(name)
    assert tensor is not None, f"{name} is packed, so it is an expert's"
    return ExpertStack(tensor.layer, tensor.role)


def _cut(tensors: Iterable[NamedTensor], shard_bytes: int | None) -> Iterator[list[NamedTensor]]:
    """Yields lists of at most `shard_bytes` bytes, or of one larger tensor."""
    shard: list[NamedTensor] = []
    size = 0
    for named in tensors:
        if shard and shard_bytes is not None and size + named.num_bytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(named)
        size += named.num_bytes
    yield shard


def _part_name(number: int) -> str:
    return f"part-{number}"


def _name_shards(folder: Path, names_by_shard: list[list[str]], total_bytes: int) -> None:
    weight_map: dict[str, Json] = {}
    for number, names in enumerate(names_by_shard):
        # Five digits of six: so the released files are called.
        shard = f"model-{number + 1:05d}-of-{len(names_by_shard):06d}.safetensors"
        (folder / _part_name(number)).rename(folder / shard)
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_atomically(folder / INDEX_FILE, (json.dumps(index, indent=1) + "\n").encode())
