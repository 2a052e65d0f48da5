"""What a certificate holds for: versions, device, processor, threads and compiler flags."""

from __future__ import annotations

import platform

import torch

from quantaudit import __version__
from quantaudit.core.certificate import Environment
from quantaudit.identity.sides import FUSED, Side
from quantaudit.numerics.compiler import EXACT_OPTIONS


def describe_environment(sides: tuple[Side, Side]) -> Environment:
    """Describes this process and machine."""
    is_compiled = any(side.name.startswith(f"{FUSED}:") for side in sides)
    return Environment(
        quantaudit=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        libraries={side.library: side.version for side in sides if side.library},
        device="cpu",
        machine=f"{platform.machine()}, {platform.system()}",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        compiler_flags={key: str(value) for key, value in EXACT_OPTIONS.items()} if is_compiled else {},
    )
