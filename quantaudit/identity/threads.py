"""How many CPU threads torch uses in a verb."""

from __future__ import annotations

import torch

from quantaudit.core.cores import free_cores
from quantaudit.core.errors import InputError


def use_threads(threads: int | None) -> None:
    """Sets the CPU threads; the free cores for `None`.

    Raises:
        InputError: If there cannot be as many.
    """
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads", expected="1 to 1024", fix="correct --threads")
    torch.set_num_threads(threads or free_cores())
