"""Who rounds in a test: the library where it is installed, and the oracle in its place."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

import pytest

from quantaudit.training import gptq
from tests.training import gptq_oracle

IS_INSTALLED = find_spec("modelopt") is not None
needs_library = pytest.mark.skipif(not IS_INSTALLED, reason="nvidia-modelopt is not installed, so it was not checked")
rounders = pytest.mark.parametrize("rounder", ["oracle", pytest.param("library", marks=needs_library)])


def choose(rounder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the oracle take the library's place if it is to."""
    if rounder == "oracle":
        functions = (gptq_oracle.update_hessian, gptq_oracle.factorize, gptq_oracle.round_columns)
        monkeypatch.setattr(gptq, "_open_library", lambda: gptq._Library(*functions))
        monkeypatch.setattr(gptq, "find_spec", lambda name: object())
        real = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "oracle" if name == gptq.LIBRARY else real(name))
