"""The map of a checkpoint folder: tensor name to file and byte range, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from quantaudit.checkpoint.folder import INDEX_FILE, WeightFiles, find_weights
from quantaudit.checkpoint.header import FileHeader, TensorEntry, read_header
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A tensor and the file it lies in."""

    file: Path
    entry: TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorIndex:
    """Every tensor of a checkpoint.

    Attributes:
        folder: The checkpoint.
        files: Its weight files, sorted.
        tensors: By name, in the order of the files and their bytes.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, Located]

    @property
    def num_bytes(self) -> int:
        """Returns the size of all tensors, headers not counted."""
        return sum(located.entry.num_bytes for located in self.tensors.values())


def read_index(folder: Path) -> TensorIndex:
    """Reads every header of a checkpoint folder and checks them against the index file, if there is one.

    Raises:
        InputError: If a file is damaged, or index and files disagree about a tensor.
    """
    weights = find_weights(folder)
    headers = [read_header(path) for path in weights.files]
    if weights.weight_map is not None:
        _check_against_map(headers, weights.weight_map, folder)
    tensors = {e.name: Located(file=header.path, entry=e) for header in headers for e in header.entries}
    if not tensors:
        raise InputError(f"{folder} holds no tensor", expected="a checkpoint with weights", fix="check the path")
    return _freeze(weights, tensors)


def _freeze(weights: WeightFiles, tensors: dict[str, Located]) -> TensorIndex:
    return TensorIndex(folder=weights.folder, files=weights.files, tensors=MappingProxyType(tensors))


def _check_against_map(headers: list[FileHeader], weight_map: Mapping[str, str], folder: Path) -> None:
    """Checks that index and headers state the same pairs of tensor and file, so that no name is there twice."""
    path = folder / INDEX_FILE
    present = {(entry.name, header.path.name) for header in headers for entry in header.entries}
    absent = [pair for pair in weight_map.items() if pair not in present]
    if absent:
        name, shard = absent[0]
        raise InputError(
            f"{path} names {len(absent)} tensors that their shards do not hold, first {shown(name)} in {shown(shard)}",
            expected="an index that belongs to these shards",
            fix="fetch index and shards from one revision",
        )
    if len(present) > len(weight_map):
        name, shard = min(pair for pair in present if weight_map.get(pair[0]) != pair[1])
        given = weight_map.get(name)
        place = "names nowhere" if given is None else f"gives to {shown(given)}"
        raise InputError(
            f"{folder / shard} holds {shown(name)}, which {path.name} {place}",
            expected="every tensor in the shard that the index gives it to, and only there",
            fix="fetch index and shards from one revision",
        )
