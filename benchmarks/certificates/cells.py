"""What is certified: each quantizer of a backend against the scheme that it states, and compiled code against its own.

A cell is one certificate. Its file in the work folder is what `quantaudit certify -o` writes, so that
`quantaudit certify --check FILE` makes it again; the seconds lie beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from quantaudit.backends import backend_names, load_backend
from quantaudit.core.certificate import Certificate
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.certify import DTYPES, certify
from quantaudit.identity.enumeration import Progress
from quantaudit.identity.levels import DTYPE_NAMES
from quantaudit.identity.sides import FUSED
from quantaudit.numerics import get_scheme, scheme_names
from quantaudit.numerics.twins import has_twin

# What people ask about first: complete certificates take minutes each, and a run may be stopped.
_FIRST = ("mxfp4", "nf4", "int4-g32", "nvfp4", "fp4", "mxfp8-e4m3", "int4", "fp8")
BOTH = ("fp32", "bf16")


class Cell(NamedTuple):
    """Two sides and a dtype; `is_deep` asks for what takes longer."""

    scheme: str
    quantizer: str
    dtype: str
    is_deep: bool = False

    @property
    def command(self) -> str:
        """The command that makes this certificate."""
        words = ["quantaudit certify", self.scheme, self.quantizer, "--dtype", self.dtype]
        return " ".join([*words, "--deep"] if self.is_deep else words)

    def path(self, work: Path) -> Path:
        """Returns where its certificate lies."""
        name = f"{self.quantizer.replace(':', '_')}-{self.dtype}{'-deep' if self.is_deep else ''}"
        return work / f"{name}.json"


class Spent(Frozen):
    """What a certificate cost.

    Attributes:
        seconds: Of the processor.
        threads: It ran on.
    """

    seconds: float
    threads: int


class Made(NamedTuple):
    """A certificate and what it cost."""

    cell: Cell
    certificate: Certificate
    spent: Spent


def list_cells(patterns: list[str], dtypes: tuple[str, ...] = BOTH, *, is_deep: bool = False) -> list[Cell]:
    """Lists what can be certified, the quick dtype and the best known quantizers first.

    Args:
        patterns: Of names of quantizers, as in a shell; all for none.
        dtypes: "fp32", "bf16" or both.
        is_deep: Whether certificates are deep.
    """
    cells = [
        Cell(scheme, quantizer, dtype, is_deep)
        for dtype in dtypes
        for quantizer, scheme, takes in _quantizers()
        if dtype in takes and (not patterns or any(fnmatchcase(quantizer, pattern) for pattern in patterns))
    ]
    return sorted(cells, key=_urgency)


def run_cell(cell: Cell, work: Path, *, threads: int, progress: Progress | None = None) -> Made:
    """Returns a certificate, from the work folder if it is there.

    Args:
        cell: What to certify.
        work: The work folder.
        threads: CPU threads.
        progress: Told (stage, done, total).

    Raises:
        InputError: If a quantizer does not run on its inputs.
        MissingLibraryError: If a library is not installed.
    """
    if (kept := read_cell(cell, work)) is not None:
        return kept
    started = time.process_time()
    certificate = certify(
        cell.scheme, cell.quantizer, dtype=cell.dtype, deep=cell.is_deep, threads=threads, progress=progress
    )
    spent = Spent(seconds=round(time.process_time() - started, 1), threads=threads)
    write_atomically(_spent_path(cell, work), spent.to_json().encode())
    write_atomically(cell.path(work), certificate.to_json().encode())
    return Made(cell, certificate, spent)


def read_cell(cell: Cell, work: Path) -> Made | None:
    """Returns a certificate of the work folder, `None` if it is not there."""
    path = cell.path(work)
    if not path.exists():
        return None
    certificate = Certificate.from_json(path.read_text("utf-8"))
    return Made(cell, certificate, Spent.from_json(_spent_path(cell, work).read_text("utf-8")))


def _spent_path(cell: Cell, work: Path) -> Path:
    return cell.path(work).with_suffix(".seconds")


def _quantizers() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the name of each quantizer, its scheme, and the dtypes it is certified for."""
    for name in backend_names():
        for offer in load_backend(name).schemes().values():
            takes = tuple(DTYPE_NAMES[dtype] for dtype in offer.dtypes if dtype in DTYPE_NAMES)
            yield f"{name}:{offer.name}", offer.catalogue, takes or tuple(DTYPES)[:1]
    for name in scheme_names():
        if "/" not in name and has_twin(get_scheme(name)):
            yield f"{FUSED}:{name}", name, ("bf16",)


def _urgency(cell: Cell) -> tuple[int, bool, int]:
    place = next((at for at, start in enumerate(_FIRST) if cell.scheme.startswith(start)), len(_FIRST))
    return BOTH.index(cell.dtype), cell.quantizer.startswith(f"{FUSED}:"), place
