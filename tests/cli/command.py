"""The command as a user meets it: arguments in, exit code, stdout and stderr out."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Command(Protocol):
    """Runs `quantaudit` in this process."""

    def __call__(self, *arguments: str | Path) -> Ended:
        """Returns how it ended."""
        ...


def start(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts `quantaudit` in a process of its own, with pipes."""
    command = [sys.executable, "-c", "from quantaudit.cli.main import main; main()", *map(str, arguments)]
    where = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.Popen(
        command, cwd=cwd, env=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def finish(process: subprocess.Popen[str]) -> Ended:
    """Waits for it."""
    out, err = process.communicate(timeout=240)
    return Ended(code=process.returncode, out=out, err=err)


def is_one_line(text: str) -> bool:
    """Tells whether stderr holds one message and no more."""
    return text.startswith("quantaudit: ") and text.count("\n") == 1 and text.endswith("\n")


def interpret(code: str, *, cwd: Path) -> str:
    """Returns what a fresh interpreter prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout
