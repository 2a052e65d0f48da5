"""The plain BLAKE3 equals the library's for every length around the borders of blocks, chunks and trees."""

from __future__ import annotations

import pytest
from blake3 import blake3

from quantaudit.hooks.blake3_hash import blake3_hex

BORDERS = [0, 64, 1024, 2048, 3072, 4096, 5120, 7168, 8192, 17 * 1024]


@pytest.mark.parametrize("border", BORDERS)
def test_every_length_around_a_border_has_the_digest_of_the_library(border: int) -> None:
    for length in range(max(0, border - 2), border + 3):
        data = bytes(i * 7 % 251 for i in range(length))
        assert blake3_hex(data) == blake3(data).hexdigest()


def test_the_digest_of_nothing_is_the_published_one() -> None:
    # First entry of test_vectors.json of the BLAKE3 team.
    assert blake3_hex(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
