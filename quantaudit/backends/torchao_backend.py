"""torchao: the quantizers of its stored weights."""

from __future__ import annotations

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.torchao_offers import OFFERS


def _open() -> Code:
    from quantaudit.backends.torchao_library import CODE

    return CODE


BACKEND = LibraryBackend(name="torchao", distribution="torchao", tested="0.18.", offers=OFFERS, open_code=_open)
