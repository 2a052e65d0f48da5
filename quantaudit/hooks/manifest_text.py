"""The JSON text of a manifest, byte for byte what `quantaudit fingerprint` writes. Standard library only.

    root(children) = blake3 of their canonical JSON;  tensors -> layers -> the whole,  matrices -> experts

`core.manifest.Manifest` reads it; this file exists because that one needs pydantic, and an engine's worker may not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantaudit.hooks.blake3_hash import blake3_hex
from quantaudit.hooks.shards import ALGORITHM, Entry

_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")
_NO_LAYER = -1


def manifest_text(entries: Sequence[Entry], decoded_to: str, *, keep_experts: bool) -> str:
    """Returns the manifest of whole tensors.

    Args:
        entries: One for every tensor, in the order of their names; each box is the whole.
        decoded_to: "bfloat16" or "float32".
        keep_experts: Whether single experts get digests.
    """
    whole = entries if keep_experts else [replace(entry, experts=()) for entry in entries]
    layer_roots = _layer_roots({entry.name: (entry.shape, entry.values) for entry in whole})
    manifest = {
        "schema_version": 1,
        "kind": "manifest",
        "algorithm": ALGORITHM,
        "scheme": None,
        "arithmetic_digest": None,
        "decoded_to": decoded_to,
        "match": None,
        "tensors": [_record(entry) for entry in whole],
        "expert_roots": _expert_roots(whole),
        "layer_roots": layer_roots,
        "values_root": _root(layer_roots),
        "bytes_root": _root(_layer_roots({entry.name: (entry.shape, entry.bytes) for entry in whole})),
    }
    return json.dumps(manifest, indent=1, allow_nan=False) + "\n"


def _record(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "shape": list(entry.shape),
        "storage": entry.storage,
        "values": entry.values,
        "bytes": entry.bytes,
        "experts": list(entry.experts),
        "blake3": None,
    }


def _layer_roots(leaves: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, str]:
    by_layer: dict[int, dict[str, str]] = {}
    for name, (shape, leaf) in leaves.items():
        by_layer.setdefault(_layer(name), {})[name] = _root({"shape": str(list(shape)), "leaf": leaf})
    return {str(layer) if layer != _NO_LAYER else "": _root(by_layer[layer]) for layer in sorted(by_layer)}


def _expert_roots(entries: Sequence[Entry]) -> dict[str, str]:
    leaves: dict[tuple[int, int], dict[str, str]] = {}
    for entry in entries:
        for expert, leaf in enumerate(entry.experts):
            leaves.setdefault((_layer(entry.name), expert), {})[entry.name] = leaf
    return {f"{layer}/{expert}": _root(leaves[layer, expert]) for layer, expert in sorted(leaves)}


def _layer(name: str) -> int:
    found = _LAYER.search(name)
    return _NO_LAYER if found is None else int(found[1])


def _root(children: Mapping[str, str]) -> str:
    return blake3_hex(json.dumps(dict(children), sort_keys=True, separators=(",", ":")).encode())
