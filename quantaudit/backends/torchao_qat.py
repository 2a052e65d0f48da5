"""torchao-qat: the fake quantizers of its quantization-aware training, a side of its own.

An offer here and the offer of that name of torchao are the two sides of one training.
"""

from __future__ import annotations

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.torchao_offers import QAT_OFFERS


def _open() -> Code:
    from quantaudit.backends.torchao_fake import CODE

    return CODE


BACKEND = LibraryBackend(
    name="torchao-qat",
    distribution="torchao",
    tested="0.18.",
    offers=QAT_OFFERS,
    open_code=_open,
)
