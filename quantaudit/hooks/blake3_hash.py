"""BLAKE3 of a few kilobytes in plain Python, for the roots of a manifest where the library is not installed.

Data is cut into chunks of 1024 bytes, a chunk into blocks of 64. A block is compressed into the chaining value of its
chunk, and chunks are joined in pairs as a binary tree whose left half is the largest power of two of chunks that leaves
something to the right. Seven rounds mix a state of sixteen 32-bit words; the message is permuted between them.

About 0.1 ms a block: right for roots of names and leaves, wrong for weights.

Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, BLAKE3, sections 2.1 to 2.5.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

Words: TypeAlias = "tuple[int, ...]"

_CHUNK, _BLOCK = 1024, 64
_MASK = 0xFFFFFFFF
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_INITIAL: Words = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
_PERMUTED = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_NUM_ROUNDS = 7


def blake3_hex(data: bytes) -> str:
    """Returns the 32-byte BLAKE3 digest of `data`, 64 hex digits."""
    return struct.pack("<8I", *_chain(data, first_chunk=0, root_flag=_ROOT)).hex()


def _chain(data: bytes, *, first_chunk: int, root_flag: int) -> Words:
    """Returns the chaining value of a subtree whose first chunk has this number."""
    num_chunks = max(1, -(-len(data) // _CHUNK))
    if num_chunks == 1:
        return _chain_chunk(data, first_chunk, root_flag)
    num_left = 1 << (num_chunks - 1).bit_length() - 1
    cut = num_left * _CHUNK
    left = _chain(data[:cut], first_chunk=first_chunk, root_flag=0)
    right = _chain(data[cut:], first_chunk=first_chunk + num_left, root_flag=0)
    return _compress(_INITIAL, left + right, 0, _BLOCK, _PARENT | root_flag)


def _chain_chunk(chunk: bytes, number: int, root_flag: int) -> Words:
    value, last = _INITIAL, max(0, len(chunk) - 1) // _BLOCK
    for i in range(last + 1):
        block = chunk[i * _BLOCK : (i + 1) * _BLOCK]
        words = struct.unpack("<16I", block.ljust(_BLOCK, b"\0"))
        flags = (_CHUNK_START if i == 0 else 0) | (_CHUNK_END | root_flag if i == last else 0)
        value = _compress(value, words, number, len(block), flags)
    return value


def _compress(value: Words, words: Words, number: int, num_bytes: int, flags: int) -> Words:
    state = [*value, *_INITIAL[:4], number & _MASK, number >> 32, num_bytes, flags]
    for _ in range(_NUM_ROUNDS):
        for i, (a, b, c, d) in enumerate(_COLUMNS + _DIAGONALS):
            _mix(state, a, b, c, d, words[2 * i], words[2 * i + 1])
        words = tuple(words[i] for i in _PERMUTED)
    return tuple(state[i] ^ state[i + 8] for i in range(8))


def _mix(state: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    for word, turn_d, turn_b in ((x, 16, 12), (y, 8, 7)):
        state[a] = (state[a] + state[b] + word) & _MASK
        state[d] = _turn(state[d] ^ state[a], turn_d)
        state[c] = (state[c] + state[d]) & _MASK
        state[b] = _turn(state[b] ^ state[c], turn_b)


def _turn(word: int, bits: int) -> int:
    """Rotates a 32-bit word to the right."""
    return (word >> bits | word << (32 - bits)) & _MASK
