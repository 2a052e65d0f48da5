"""Opens one side of a comparison: a checkpoint folder, a safetensors file or a gguf file. Only headers are read.

A path is never taken for a hub name, and nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from quantaudit.checkpoint.folder import check_folder
from quantaudit.checkpoint.header import read_header
from quantaudit.checkpoint.index import Located, read_index
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.identity.layouts.fused import Found, take_fused
from quantaudit.identity.layouts.gguf_file import read_gguf
from quantaudit.identity.layouts.logical import LogicalName, LogicalTensor, MatrixSource, Side, logical_name
from quantaudit.identity.layouts.recognise import bundle, recognise

GGUF_SUFFIX = ".gguf"
SAFETENSORS_SUFFIX = ".safetensors"


def open_side(path: Path) -> Side:
    """Opens a checkpoint.

    Args:
        path: A folder with safetensors, or one `.safetensors` or `.gguf` file.

    Raises:
        InputError: If it is something else, damaged, or contradicts itself.
        NotMeasuredError: If it holds no tensor.
    """
    if path.suffix == GGUF_SUFFIX:
        return _side(path, "gguf file", read_gguf(path))
    if path.is_file() and path.suffix == SAFETENSORS_SUFFIX:
        header = read_header(path)
        return _side(path, "safetensors file", _found({e.name: Located(file=path, entry=e) for e in header.entries}))
    if path.is_file():
        raise InputError(
            f"{path} is a file of another kind",
            expected="a checkpoint folder, a .safetensors or .gguf file, or a manifest (.json)",
            fix="give the folder of the checkpoint",
        )
    check_folder(path)
    return _side(path, "checkpoint", _found(dict(read_index(path).tensors)))


def _found(tensors: dict[str, Located]) -> list[Found]:
    found = take_fused(tensors)
    for stem, parts in bundle(tensors).items():
        found.append(Found(logical_name(stem, "" if "" in parts else "weight"), recognise(stem, parts)))
    return found


def _side(path: Path, kind: str, found: Iterable[Found]) -> Side:
    by_name: dict[str, dict[int, MatrixSource]] = {}
    for name, source in found:
        matrices = by_name.setdefault(name.name, {})
        if name.expert in matrices:
            raise _twice(path, name, matrices[name.expert], source)
        matrices[name.expert] = source
    if not by_name:
        raise NotMeasuredError(f"{path} holds no tensor")
    tensors: Mapping[str, LogicalTensor] = {
        name: LogicalTensor(name=name, matrices=dict(sorted(by_name[name].items()))) for name in sorted(by_name)
    }
    return Side(path=str(path), kind=kind, tensors=tensors)


def _twice(path: Path, name: LogicalName, first: MatrixSource, second: MatrixSource) -> InputError:
    return InputError(
        f"{path} stores {name.name} twice, as {shown(first.label)} and as {shown(second.label)}",
        expected="each weight once",
        fix="compare the parts as separate files",
    )
