"""A deployment whose stored scales are wrong is rejected as degenerate, before anyone reads its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit import registered
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Split
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.verdict import Admission
from quantaudit.numerics import get_scheme
from quantaudit.probes.world import default_probes
from quantaudit.reporting import read_report
from tests.checkpoint.tiny import WEIGHTS, edit_tensors
from tests.cli.command import Command

Tensors = dict[str, tuple[str, list[int], bytes]]
POWERS = 6
PROBES_A_FAMILY = 40


def raise_scales(tensors: Tensors) -> None:
    """Multiplies every E8M0 scale of the routed experts by 2^6: its byte is the exponent."""
    for name, (dtype, shape, raw) in tensors.items():
        if name.endswith(".weight_scale"):
            assert max(raw) + POWERS < 253  # still finite in bf16: this is damage, not a file that would be refused
            tensors[name] = (dtype, shape, bytes(byte + POWERS for byte in raw))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The embedded model, its routed experts packed as MXFP4."""
    checkpoint = open_checkpoint(embedded_model_folder())
    parameters = ((name, p.detach()) for name, p in load_model(checkpoint).named_parameters())
    scheme = get_scheme("mxfp4-even")
    write_checkpoint(tmp_path / "packed", checkpoint.config, parameters, scheme=scheme, shard_bytes=None)
    return tmp_path / "packed"


@pytest.mark.slow
def test_scales_times_64_are_rejected_as_degenerate(
    packed: Path, quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_tensors(packed / WEIGHTS, raise_scales)
    monkeypatch.setattr(registered, "default_probes", lambda split: default_probes(Split.AUDIT, PROBES_A_FAMILY))
    ended = quantaudit("run", "--lo", packed, "--threads", "1", "-o", "out")
    told = read_report(Path("out") / "report.json")
    gate = next(c for c in told.clauses if c.name == "degeneracy")
    assert (ended.code, told.verdict.admission) == (3, Admission.REJECT), gate.decision.reason
    assert gate.decision.outcome is Outcome.FAIL
    assert told.verdict.sentence.startswith("Rejected at the degeneracy gate: degeneracy.")
    # `deciding` has every gate that fails: with these weights the likelihood is worse by more than its margin too.
    assert told.verdict.deciding == ("degeneracy", "fidelity")
    assert not told.verdict.safety_may_be_read
