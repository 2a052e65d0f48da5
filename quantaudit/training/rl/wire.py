"""Messages between the loop and the engine's process: JSON, and the bytes of tensors behind it.

    8 bytes  length of the head, little endian
    8 bytes  length of the tensors
    head     JSON: the message, in which a tensor stands as its key; key, dtype and shape of every tensor
    tensors  their bytes in the order of the head, each beginning at a multiple of 64 bytes

Nothing is pickled: neither side runs what the other sends. The bytes are copied once where they are sent and once where
they arrive; the tensors of a message share its memory.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Json
from quantaudit.training.rl.bucket import Bucket, Field, Piece
from quantaudit.training.rl.decoding import Continuation, Request
from quantaudit.training.rl.derived import DerivedLayout
from quantaudit.training.rl.loaded import LoadedWeight
from quantaudit.training.rl.memory import RoutingRecord
from quantaudit.training.rl.placement import Placement
from quantaudit.training.rl.state import EngineState, Key

_LENGTHS = struct.Struct("<QQ")
_ALIGNMENT = 64
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float32,
        torch.float64,
        torch.bfloat16,
    )
}
Head = dict[str, Json]


class WireError(RuntimeError):
    """Says that the other side has closed the connection or does not follow the format."""


class Message(NamedTuple):
    """A head and its tensors."""

    head: Head
    tensors: dict[str, Tensor]


class Sending:
    """A message that is being put together."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def put(self, tensor: Tensor) -> str:
        """Adds a tensor; returns the key it has in the message."""
        key = str(len(self._tensors))
        self._tensors[key] = tensor.detach().contiguous()
        return key

    def put_optional(self, tensor: Tensor | None) -> str | None:
        """Adds a tensor, if there is one."""
        return None if tensor is None else self.put(tensor)

    def message(self, head: Head) -> Message:
        """Returns the message."""
        return Message(head, self._tensors)


def send_message(connection: socket.socket, message: Message) -> None:
    """Sends a message whole."""
    described: list[Json] = [[key, _name_of(t.dtype), list(t.shape)] for key, t in message.tensors.items()]
    head = json.dumps([message.head, described], allow_nan=False).encode()
    body = _join(message.tensors)
    connection.sendall(_LENGTHS.pack(len(head), len(body)) + head)
    connection.sendall(body.numpy().data)


def _join(tensors: Mapping[str, Tensor]) -> Tensor:
    """Returns the bytes of all tensors, uint8."""
    sizes = [_padded(tensor.nbytes) for tensor in tensors.values()]
    body = torch.empty(sum(sizes), dtype=torch.uint8)
    for room, tensor in zip(body.split(sizes), tensors.values(), strict=True):
        room[: tensor.nbytes].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
    return body


def _cut(body: bytearray, described: list[object]) -> dict[str, Tensor]:
    """Returns the tensors of a message, in its memory."""
    tensors = {}
    start = 0
    for key, name, shape in map(_list, described):
        dtype, sizes = _DTYPES[str(name)], _integers(shape)
        count = math.prod(sizes)
        flat = torch.frombuffer(body, dtype=dtype, count=count, offset=start) if count else torch.empty(0, dtype=dtype)
        tensors[str(key)] = flat.view(sizes)
        start += _padded(flat.nbytes)
    return tensors


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def receive_message(connection: socket.socket) -> Message:
    """Waits for a message.

    Raises:
        WireError: If the other side is gone.
        TimeoutError: If the connection has a timeout and it passes.
    """
    head_length, body_length = _LENGTHS.unpack(_receive(connection, _LENGTHS.size))
    head, described = json.loads(_receive(connection, head_length))
    return Message(head, _cut(_receive(connection, body_length), described))


def _receive(connection: socket.socket, length: int) -> bytearray:
    parts = bytearray(length)
    view, done = memoryview(parts), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise WireError("the other side closed the connection")
        done += count
    return parts


def write_scheme(scheme: Scheme | None) -> str | None:
    """Returns a scheme as text."""
    return None if scheme is None else scheme.model_dump_json()


def read_scheme(text: object) -> Scheme | None:
    """Returns the scheme of a text."""
    return None if text is None else _parse_scheme(str(text))


@lru_cache(maxsize=64)
def _parse_scheme(text: str) -> Scheme:
    return Scheme.model_validate_json(text)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def write_bucket(bucket: Bucket) -> Message:
    """Returns a bucket as a message."""
    sending = Sending()
    pieces: list[Json] = [
        {
            "name": piece.name,
            "part": piece.part,
            "field": piece.field.value,
            "shard": piece.shard,
            "tensor": sending.put(piece.tensor),
            "scheme": write_scheme(piece.scheme),
            "shape": list(piece.shape),
            "code_dtype": _name_of(piece.code_dtype),
        }
        for piece in bucket.pieces
    ]
    return sending.message({"number": bucket.number, "version": bucket.version, "pieces": pieces})


def read_bucket(message: Message) -> Bucket:
    """Returns the bucket of a message."""
    head = _object(message.head)
    pieces = tuple(
        Piece(
            name=str(piece["name"]),
            part=str(piece["part"]),
            field=Field(str(piece["field"])),
            shard=_integer(piece["shard"]),
            tensor=message.tensors[str(piece["tensor"])],
            scheme=read_scheme(piece["scheme"]),
            shape=_integers(piece["shape"]),
            code_dtype=_DTYPES[str(piece["code_dtype"])],
        )
        for piece in map(_object, _list(head["pieces"]))
    )
    return Bucket(number=_integer(head["number"]), version=_integer(head["version"]), pieces=pieces)


def write_requests(requests: list[Request]) -> list[Json]:
    """Returns requests as JSON."""
    return [
        {
            "key": r.key,
            "tokens": list(r.tokens),
            "position": r.position,
            "max_new": r.max_new,
            "forced": list(r.forced),
        }
        for r in requests
    ]


def read_requests(value: object) -> list[Request]:
    """Returns the requests of JSON."""
    return [
        Request(
            key=str(r["key"]),
            tokens=_integers(r["tokens"]),
            position=_integer(r["position"]),
            max_new=_integer(r["max_new"]),
            forced=_integers(r["forced"]),
        )
        for r in map(_object, _list(value))
    ]


def write_continuations(continuations: list[Continuation]) -> Message:
    """Returns continuations as a message; log-probabilities travel as fp64."""
    sending = Sending()
    items: list[Json] = []
    for one in continuations:
        routing = one.routing
        items.append(
            {
                "tokens": list(one.tokens),
                "logprobs": sending.put(torch.tensor(one.logprobs, dtype=torch.float64)),
                "is_finished": one.is_finished,
                "ids": None if routing is None else sending.put(routing.ids_TLK),
                "weights": None if routing is None else sending.put(routing.weights_TLK),
                "logits": sending.put_optional(one.logits_TV),
            }
        )
    return sending.message({"continuations": items})


def read_continuations(message: Message) -> list[Continuation]:
    """Returns the continuations of a message."""
    done = []
    for item in map(_object, _list(message.head["continuations"])):
        ids, weights, logits = (item[key] for key in ("ids", "weights", "logits"))
        routing = None
        if ids is not None:
            routing = RoutingRecord(ids_TLK=message.tensors[str(ids)], weights_TLK=message.tensors[str(weights)])
        done.append(
            Continuation(
                tokens=_integers(item["tokens"]),
                logprobs=tuple(message.tensors[str(item["logprobs"])].tolist()),
                is_finished=bool(item["is_finished"]),
                routing=routing,
                logits_TV=None if logits is None else message.tensors[str(logits)],
            )
        )
    return done


def write_state(state: EngineState) -> Message:
    """Returns an engine's state as a message."""
    sending = Sending()
    loaded: list[Json] = [
        {
            "key": list(key),
            "fields": _put_fields(sending, weight.fields),
            "versions": {field.value: version for field, version in weight.versions.items()},
            "scheme": write_scheme(weight.scheme),
            "shape": list(weight.shape),
            "code_dtype": _name_of(weight.code_dtype),
        }
        for key, weight in state.loaded.items()
    ]
    derived: list[Json] = [_write_layout(sending, layout) for layout in state.derived.values()]
    return sending.message(
        {
            "version": state.version,
            "loaded": loaded,
            "derived": derived,
            "placement": state.placement.model_dump_json(),
        }
    )


def _put_fields(sending: Sending, fields: Mapping[Field, Tensor]) -> Json:
    return {field.value: sending.put(tensor) for field, tensor in fields.items()}


def _write_layout(sending: Sending, layout: DerivedLayout) -> Json:
    return {
        "name": layout.name,
        "shard": layout.shard,
        "parts": list(layout.parts),
        "tiles": sending.put(layout.tiles),
        "above": _put_fields(sending, layout.above),
        "scheme": write_scheme(layout.scheme),
        "shape": list(layout.shape),
        "packed_dtype": _name_of(layout.packed_dtype),
        "code_dtype": _name_of(layout.code_dtype),
        "version": layout.version,
    }


def read_state(message: Message) -> EngineState:
    """Returns the engine's state of a message."""
    head = message.head
    loaded = {}
    for item in map(_object, _list(head["loaded"])):
        name, part, shard = _list(item["key"])
        versions = {Field(field): _integer(v) for field, v in _object(item["versions"]).items()}
        loaded[Key(str(name), str(part), _integer(shard))] = LoadedWeight(
            fields=_take_fields(message, item["fields"]),
            versions=versions,
            scheme=read_scheme(item["scheme"]),
            shape=_integers(item["shape"]),
            code_dtype=_DTYPES[str(item["code_dtype"])],
        )
    layouts = [_read_layout(message, item) for item in map(_object, _list(head["derived"]))]
    return EngineState(
        version=_integer(head["version"]),
        loaded=loaded,
        derived={(layout.name, layout.shard): layout for layout in layouts},
        placement=Placement.model_validate_json(str(head["placement"])),
    )


def _take_fields(message: Message, value: object) -> dict[Field, Tensor]:
    return {Field(field): message.tensors[str(key)] for field, key in _object(value).items()}


def _read_layout(message: Message, item: Mapping[str, object]) -> DerivedLayout:
    return DerivedLayout(
        name=str(item["name"]),
        shard=_integer(item["shard"]),
        parts=tuple(map(str, _list(item["parts"]))),
        tiles=message.tensors[str(item["tiles"])],
        above=_take_fields(message, item["above"]),
        scheme=read_scheme(item["scheme"]),
        shape=_integers(item["shape"]),
        packed_dtype=_DTYPES[str(item["packed_dtype"])],
        code_dtype=_DTYPES[str(item["code_dtype"])],
        version=_integer(item["version"]),
    )


def _object(value: object) -> Mapping[str, object]:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _integers(value: object) -> tuple[int, ...]:
    return tuple(map(_integer, _list(value)))
