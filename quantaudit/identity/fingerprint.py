"""Fingerprints a checkpoint: leaves of every logical tensor, read one matrix at a time, combined by blake3.

With a scheme, experts that are stored unquantized are quantized by it first, so that a trainer's master and a server's
packed file have equal manifests exactly if the server holds what the scheme makes of the master. What is stored packed
keeps its codes. Packed codes are decoded to one dtype, bf16 unless asked otherwise, since that is what an engine
computes with; plain numbers are taken as they are, and widen to fp32 exactly.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.manifest import DecodedTo, Manifest, TensorDigest
from quantaudit.core.scheme import LinearScale, PerChannel, PerGroup, Scheme
from quantaudit.core.serial import canonical_bytes
from quantaudit.hooks.leaf import WORD_BYTES, Leaf, leaf_of_bytes, leaf_of_values
from quantaudit.identity.fingerprint_compiled import choose_byte_sum, choose_value_sum, is_worth_compiling
from quantaudit.identity.fingerprint_fused import can_fuse, leaf_of_codes
from quantaudit.identity.layouts.logical import DENSE, LogicalTensor, MatrixSource, Side
from quantaudit.identity.layouts.stored import StoredMatrix
from quantaudit.numerics import fused_fake_quantize
from quantaudit.numerics.reference import INPUT_DTYPES

MAX_EXPERT_LEAVES = 4096  # beyond it, leaves of single experts are left out unless asked for
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")
_DTYPES = {DecodedTo.BFLOAT16: torch.bfloat16, DecodedTo.FLOAT32: torch.float32}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a fingerprint is taken of.

    Attributes:
        scheme: Quantizes experts that are not; `None` takes them as they are.
        decoded_to: Dtype of decoded codes.
        match: Pattern of logical names that the side was cut down to; only recorded here.
        experts: Whether single experts get leaves; `None` decides by their number.
        is_cryptographic: Whether blake3 goes over the stored bytes too.
    """

    scheme: Scheme | None = None
    decoded_to: DecodedTo = DecodedTo.BFLOAT16
    match: str | None = None
    experts: bool | None = None
    is_cryptographic: bool = False


@torch.no_grad()
def fingerprint_side(side: Side, request: Request, progress: Progress) -> Manifest:
    """Fingerprints an opened checkpoint.

    Raises:
        InputError: If a tensor cannot be quantized by the scheme, is quantized in another format already, or a file
            changes meanwhile.
        NotMeasuredError: If there is a scheme, and no expert to quantize or to find quantized.
    """
    if request.scheme is not None and not any(tensor.is_stack for tensor in side.tensors.values()):
        raise NotMeasuredError(f"{side.path} holds no routed experts, so there is nothing for {request.scheme.name}")
    num_matrices = sum(len(tensor.matrices) for tensor in side.tensors.values() if tensor.is_stack)
    with_experts = num_matrices <= MAX_EXPERT_LEAVES if request.experts is None else request.experts
    total, done = sum(len(tensor.matrices) for tensor in side.tensors.values()), 0
    digests: list[TensorDigest] = []
    for tensor in side.tensors.values():
        digests.append(_digest(tensor, request, with_experts=with_experts))
        done += len(tensor.matrices)
        progress("digest", done, total)
    return _combine(tuple(digests), request)


def _digest(tensor: LogicalTensor, request: Request, *, with_experts: bool) -> TensorDigest:
    values, stored = Leaf(), Leaf()
    whole = blake3() if request.is_cryptographic else None
    experts: list[str] = []
    shape = _common_shape(tensor)
    for expert, source in tensor.matrices.items():
        matrix = source.read()
        first_row = max(expert, 0) * matrix.shape[0]
        of_values = _value_leaf(matrix, source, first_row, request.scheme if tensor.is_stack else None, request)
        values += of_values
        stored += _byte_leaf(matrix, max(expert, 0))
        experts.append(of_values.hex)
        if whole is not None:
            for part in sorted(matrix.parts):
                whole.update(_raw(matrix.parts[part]).numpy().data)
    return TensorDigest(
        name=tensor.name,
        shape=(len(tensor.matrices), *shape) if tensor.is_stack else shape,
        storage=tensor.storage,
        values=values.hex,
        bytes=stored.hex,
        experts=tuple(experts) if tensor.is_stack and with_experts else (),
        blake3=None if whole is None else whole.hexdigest(),
    )


def _common_shape(tensor: LogicalTensor) -> tuple[int, ...]:
    shapes = {source.shape for source in tensor.matrices.values()}
    if len(shapes) > 1:
        raise InputError(
            f"the experts of {tensor.name} have the shapes {', '.join(str(list(s)) for s in sorted(shapes))}",
            expected="one shape",
            fix="write the checkpoint again",
        )
    return shapes.pop()


def _value_leaf(
    matrix: StoredMatrix, source: MatrixSource, first_row: int, scheme: Scheme | None, request: Request
) -> Leaf:
    if not matrix.is_decodable:
        return _byte_leaf(matrix, 0)
    if scheme is not None and matrix.packing is not None and matrix.packing.element != scheme.element:
        raise InputError(
            f"{source.label} is stored as {source.storage}",
            expected=f"unquantized weights, or codes of {scheme.element.name}, for the scheme {scheme.name}",
            fix="leave out --scheme, or give the scheme it is stored in; quantizing twice is never done silently",
        )
    num_values = matrix.shape[0] * matrix.shape[1]
    if can_fuse(matrix) and is_worth_compiling("codes", num_values):
        fused = leaf_of_codes(matrix, first_row, _DTYPES[request.decoded_to])
        if fused is not None:
            return fused
    total, summer = Leaf(), choose_value_sum(num_values)
    for rows, values_RC in _value_pieces(matrix, source, scheme, _DTYPES[request.decoded_to]):
        total += leaf_of_values(values_RC, first_row=first_row + rows.start, summer=summer)
    return total


def _value_pieces(
    matrix: StoredMatrix, source: MatrixSource, scheme: Scheme | None, decoded_to: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    if scheme is None or matrix.packing is not None:
        dtype = matrix.dtype or decoded_to
        for rows in matrix.row_pieces():
            yield rows, matrix.values(rows, dtype)
        return
    assert matrix.dtype is not None
    if matrix.dtype not in INPUT_DTYPES:
        raise InputError(f"{source.label} in {source.storage}", expected="bfloat16 or float32", fix="cast it first")
    is_by_row = isinstance(scheme.granularity, PerGroup | PerChannel) and not _has_second_level(scheme)
    pieces = matrix.row_pieces() if is_by_row else iter([slice(0, matrix.shape[0])])
    for rows in pieces:
        yield rows, fused_fake_quantize(matrix.values(rows, matrix.dtype).contiguous(), scheme)


def _has_second_level(scheme: Scheme) -> bool:
    return isinstance(scheme.scale, LinearScale) and scheme.scale.second_level is not None


def _byte_leaf(matrix: StoredMatrix, number: int) -> Leaf:
    """Returns the leaf of the stored bytes; parts follow each other in columns, matrices in rows."""
    total, rows, summer = Leaf(), 0, choose_byte_sum(matrix.num_bytes // WORD_BYTES)
    for part in sorted(matrix.parts):
        stored = matrix.parts[part]
        lines = _raw(stored).reshape(max(stored.shape[0], 1) if stored.dim() else 1, -1)
        # Rows of the parts are kept apart by their distance: no two bytes of a tensor share a key.
        total += leaf_of_bytes(lines, first_row=(number << 40) + (rows << 36), summer=summer)
        rows += 1
    return total


def _raw(stored: Tensor) -> Tensor:
    return stored.contiguous().reshape(-1).view(torch.uint8)


def _combine(digests: tuple[TensorDigest, ...], request: Request) -> Manifest:
    return Manifest(
        scheme=None if request.scheme is None else request.scheme.name,
        arithmetic_digest=None if request.scheme is None else request.scheme.arithmetic_digest,
        decoded_to=request.decoded_to,
        match=request.match,
        tensors=digests,
        expert_roots=_expert_roots(digests),
        layer_roots=(layers := _layer_roots(digests, lambda digest: digest.values)),
        values_root=_root(layers),
        bytes_root=_root(_layer_roots(digests, lambda digest: digest.bytes)),
    )


def _layer_roots(digests: tuple[TensorDigest, ...], leaf: Callable[[TensorDigest], str]) -> dict[str, str]:
    by_layer: dict[str, dict[str, str]] = {}
    for digest in digests:
        found = _LAYER.search(digest.name)
        roots = by_layer.setdefault(found[1] if found is not None else "", {})
        roots[digest.name] = _root({"shape": str(list(digest.shape)), "leaf": leaf(digest)})
    ordered = sorted(by_layer, key=lambda layer: int(layer or -1))
    return {layer: _root(by_layer[layer]) for layer in ordered}


def _expert_roots(digests: tuple[TensorDigest, ...]) -> dict[str, str]:
    leaves: dict[tuple[int, int], dict[str, str]] = {}
    for digest in digests:
        found = _LAYER.search(digest.name)
        for expert, leaf in enumerate(digest.experts):
            leaves.setdefault((int(found[1]) if found is not None else DENSE, expert), {})[digest.name] = leaf
    return {f"{layer}/{expert}": _root(leaves[layer, expert]) for layer, expert in sorted(leaves)}


def _root(children: Mapping[str, str]) -> str:
    return blake3(canonical_bytes(dict(children))).hexdigest()
