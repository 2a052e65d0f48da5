"""A manifest: the fingerprint of a checkpoint, some kilobytes whose equality means equal quantized values.

The value digest is over decoded values in logical coordinates, so it does not depend on packing, names, files or
shards; the byte digest is over what is stored. A leaf (32 hex digits) is made of one tensor, leaves add up over shards
(`quantaudit.hooks.leaf`), and blake3 combines them to roots. Chance collisions of two different tensors have a
probability below 2^-67; nothing here resists somebody who looks for one, which is what `cryptographic` is for.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen

ALGORITHM = "product-keys-1"  # changes whenever the same values would get another leaf
KIND = "manifest"


class DecodedTo(StrEnum):
    """The dtype that packed codes are decoded to before they are digested."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class TensorDigest(Frozen):
    """One logical tensor: a dense one, or all routed experts of one layer and role.

    Attributes:
        name: Logical name.
        shape: [expert, out, in] of experts, else as stored.
        storage: How it is written.
        values: Leaf of the decoded values; that of the bytes for integers and unknown layouts.
        bytes: Leaf of the stored bytes.
        experts: Leaf of the values of every expert; empty outside experts, or where they were left out.
        blake3: Digest of the stored bytes, if it was asked for.
    """

    name: str
    shape: tuple[int, ...]
    storage: str
    values: str = Field(pattern=r"^[0-9a-f]{32}$")
    bytes: str = Field(pattern=r"^[0-9a-f]{32}$")
    experts: tuple[str, ...] = ()
    blake3: str | None = None


class Manifest(Frozen):
    """The fingerprint of one checkpoint.

    Attributes:
        algorithm: How leaves are made.
        scheme: Scheme by which unquantized experts were quantized first; `None` if they were taken as they are.
        arithmetic_digest: Digest of that scheme.
        decoded_to: The dtype that packed codes were decoded to.
        match: Pattern of the names that were taken; `None` for all.
        tensors: In the order of their names.
        expert_roots: blake3 over the leaves of an expert's matrices, by "layer/expert"; empty if left out.
        layer_roots: blake3 over the tensors of a layer, by its number; "" for what is in none.
        values_root: blake3 over all layers: equal roots mean equal values.
        bytes_root: The same over stored bytes.
    """

    schema_version: Literal[1] = 1
    kind: Literal["manifest"] = "manifest"
    algorithm: str = ALGORITHM
    scheme: str | None
    arithmetic_digest: str | None
    decoded_to: DecodedTo
    match: str | None
    tensors: tuple[TensorDigest, ...]
    expert_roots: dict[str, str]
    layer_roots: dict[str, str]
    values_root: str
    bytes_root: str


def parse_manifest(text: str, path: Path) -> Manifest:
    """Returns the manifest in the text of a file.

    Raises:
        InputError: If it is something else, or was made in another way than this version makes them.
    """
    try:
        manifest = Manifest.from_json(text)
    except ValueError as error:
        raise InputError(
            f"{path} is no manifest ({str(error).splitlines()[0]})",
            expected="what `quantaudit fingerprint` writes",
            fix="make it with `quantaudit fingerprint CKPT -o FILE`",
        ) from None
    if manifest.algorithm != ALGORITHM:
        raise InputError(
            f"{path} was made by the algorithm {manifest.algorithm!r}",
            expected=f"{ALGORITHM!r}",
            fix="make both manifests with one version of quantaudit",
        )
    return manifest
