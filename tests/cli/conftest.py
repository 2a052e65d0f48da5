"""Tiny checkpoints that read bytes, a few probes of each family, and the command in this process."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from quantaudit import api, registered
from quantaudit.cli import main
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.numerics import get_scheme
from quantaudit.probes import tokenizer
from quantaudit.probes.world import default_probes
from tests.checkpoint.tiny import TINY, save
from tests.cli.command import Command, Ended

READS_BYTES = replace(
    TINY,
    vocab_size=tokenizer.VOCAB_SIZE,
    bos_token_id=tokenizer.BOS,
    eos_token_id=tokenizer.EOS,
    pad_token_id=tokenizer.PAD,
)
PROBES_A_FAMILY = 12


@cache
def few_probes() -> ProbeSet:
    """Twelve probes of every family: enough to run everything, too few to decide anything."""
    return default_probes(Split.AUDIT, PROBES_A_FAMILY)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain`, its packed twins `packed` and `sharded`, `other` weights, and two other architectures."""
    root = tmp_path_factory.mktemp("models")
    scheme = get_scheme("mxfp4-even")
    save(root / "plain", config=READS_BYTES)
    save(root / "packed", config=READS_BYTES, scheme=scheme)
    save(root / "sharded", config=READS_BYTES, scheme=scheme, shard_bytes=40_000)
    save(root / "other", config=READS_BYTES, seed=1)
    save(root / "larger", config=replace(READS_BYTES, num_experts=8))
    save(root / "letters", config=TINY)
    return root


@pytest.fixture
def models(written: Path, tmp_path: Path) -> Path:
    """A copy of them to damage."""
    return Path(shutil.copytree(written, tmp_path / "models"))


@pytest.fixture
def quantaudit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, in an empty folder, on one thread, with few probes."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(registered, "default_probes", lambda split: few_probes())
    monkeypatch.setattr(api, "free_cores", lambda: 1)

    def call(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        code = main._run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ended(code=code, out=out, err=err)

    return call
