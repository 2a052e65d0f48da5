"""Bytes are the tokens: an id below 256 is that byte, and three control tokens follow.

The vocabulary is padded to 288, a multiple of 32, so that the embedding and the head divide into quantization groups.
"""

from __future__ import annotations

from collections.abc import Iterable

BOS = 256
EOS = 257
PAD = 258
VOCAB_SIZE = 288


def encode(text: str) -> list[int]:
    """Returns the UTF-8 bytes of `text` as token ids, without control tokens."""
    return list(text.encode())


def decode(ids: Iterable[int]) -> str:
    """Returns the text of `ids`; control tokens and unused ids vanish, bytes that are not UTF-8 become U+FFFD."""
    return bytes(i for i in ids if i < 256).decode(errors="replace")
