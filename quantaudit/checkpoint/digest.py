"""A digest of weights: equal digests mean the same names, dtypes, shapes and bytes of every tensor.

It covers the tensors of the layout one by one in the order of their names, without the padding of `A_log` and without
how they are spread over files, so that a model and the checkpoint written from it have one digest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from blake3 import blake3
from torch import Tensor

from quantaudit.checkpoint.names import PREFIX, dense_slots, parse_expert
from quantaudit.checkpoint.reader import Checkpoint
from quantaudit.checkpoint.serialize import NamedTensor, dtype_tag, raw_bytes
from quantaudit.checkpoint.unstack import Parameters, layout_tensors
from quantaudit.core.serial import canonical_bytes
from quantaudit.model.config import ModelConfig

_LAYER = re.compile(r".*\.layers\.\d+\.")


def digest_checkpoint(checkpoint: Checkpoint) -> str:
    """Returns the digest (64 hex digits) of what a checkpoint stores of the text model, read one tensor at a time.

    Raises:
        InputError: If a tensor holds NaN or infinity, or padding is not zero.
    """
    return digest_tensors(_stored(checkpoint))


def digest_parameters(parameters: Parameters, config: ModelConfig) -> str:
    """Returns the digest of the checkpoint that these parameters would be written as.

    Raises:
        InputError: If they do not fit the configuration or the layout.
    """
    return digest_tensors(sorted(layout_tensors(parameters, config, None), key=lambda named: named.name))


def digest_by_layer(readers: Mapping[str, Callable[[], Tensor]], config: ModelConfig) -> str:
    """Returns the digest of the checkpoint that these parameters would be written as, read one layer at a time.

    Args:
        readers: Name in the model, and what returns the value of that parameter.
        config: The model.

    Raises:
        InputError: If they do not fit the configuration or the layout.
    """
    parameters = ((name, readers[name]()) for name in sorted(readers, key=lambda name: _layer_prefix(PREFIX + name)))
    layers = groupby(layout_tensors(parameters, config, None), key=lambda named: _layer_prefix(named.name))
    return digest_tensors(named for _, layer in layers for named in sorted(layer, key=lambda named: named.name))


def _layer_prefix(name: str) -> str:
    """Returns the part of a name on disk up to the layer's number, or all of it: sorted by it, names are sorted."""
    match = _LAYER.match(name)
    return name if match is None else match[0]


def digest_tensors(tensors: Iterable[NamedTensor]) -> str:
    """Returns the digest of tensors that come in the order of their names, each once."""
    digest = blake3()
    last = ""
    for named in tensors:
        assert last < named.name, f"{named.name} comes after {last}"
        last = named.name
        # The prefix says how many bytes follow, so no two sequences of tensors feed the same bytes.
        digest.update(canonical_bytes([named.name, dtype_tag(named.tensor), list(named.tensor.shape)]))
        digest.update(raw_bytes(named.tensor))
    return digest.hexdigest()


def _stored(checkpoint: Checkpoint) -> Iterator[NamedTensor]:
    slots = {slot.name: slot for slot in dense_slots(checkpoint.config)}
    names = sorted(name for name in checkpoint.index.tensors if name in slots or parse_expert(name) is not None)
    for name in names:
        yield NamedTensor(name, checkpoint.read_slot(slots[name]) if name in slots else checkpoint.read(name))
