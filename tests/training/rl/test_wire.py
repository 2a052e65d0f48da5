"""Messages arrive as they were sent: every dtype and shape, bit for bit, whatever lies beside it."""

from __future__ import annotations

import socket
from threading import Thread

import pytest
import torch
from torch import Tensor

from quantaudit.training.rl.wire import Message, WireError, receive_message, send_message


def sent_and_received(message: Message) -> Message:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = Thread(target=send_message, args=(ours, message))
        sender.start()
        arrived = receive_message(theirs)
        sender.join()
    return arrived


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def test_tensors_of_every_dtype_and_shape_arrive_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (3, 5, 8), dtype=torch.uint8, generator=generator)
    dtypes = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
    tensors = {str(dtype): raw.view(dtype) for dtype in (*dtypes, torch.bfloat16)}
    tensors |= {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(12.0).view(3, 4).mT,
        "odd": raw.flatten()[:7],
        "nan": torch.tensor([float("nan"), -0.0]),
    }
    arrived = sent_and_received(Message({"command": "load"}, tensors))
    assert arrived.head == {"command": "load"} and list(arrived.tensors) == list(tensors)
    for name, tensor in tensors.items():
        other = arrived.tensors[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape) and bits(other) == bits(tensor)


def test_a_message_without_tensors_arrives() -> None:
    assert sent_and_received(Message({"command": "pause"}, {})) == Message({"command": "pause"}, {})


def test_a_closed_connection_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(WireError, match="closed"):
        receive_message(theirs)
