"""Says whether a trainer's and a server's quantizer are one function, and whether a quantized MoE still behaves.

The public names live here and are imported when first used, so `import quantaudit` is cheap and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.api import audit, certify, compare, diff, fingerprint, identify, judge, render
    from quantaudit.core.contract import Contract
    from quantaudit.core.recipe import Recipe
    from quantaudit.core.report import AuditReport
    from quantaudit.core.scheme import Scheme
    from quantaudit.numerics import dequantize, fake_quantize, get_scheme, quantize

__version__ = "0.1.0"

__all__ = [
    "AuditReport",
    "Contract",
    "Recipe",
    "Scheme",
    "__version__",
    "audit",
    "certify",
    "compare",
    "dequantize",
    "diff",
    "fake_quantize",
    "fingerprint",
    "get_scheme",
    "identify",
    "judge",
    "quantize",
    "render",
]

_HOMES = {
    "AuditReport": "quantaudit.core.report",
    "Contract": "quantaudit.core.contract",
    "Recipe": "quantaudit.core.recipe",
    "Scheme": "quantaudit.core.scheme",
    "audit": "quantaudit.api",
    "certify": "quantaudit.api",
    "compare": "quantaudit.api",
    "dequantize": "quantaudit.numerics",
    "diff": "quantaudit.api",
    "fake_quantize": "quantaudit.numerics",
    "fingerprint": "quantaudit.api",
    "get_scheme": "quantaudit.numerics",
    "identify": "quantaudit.api",
    "judge": "quantaudit.api",
    "quantize": "quantaudit.numerics",
    "render": "quantaudit.api",
}


def __getattr__(name: str) -> object:
    """Imports a public name the first time it is asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, whether imported yet or not."""
    return sorted(__all__)
