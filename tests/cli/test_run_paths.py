"""`run HI --lo PATH` and `run HI --recipe R` on checkpoints of disk: bf16 or packed, one file or shards."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from quantaudit import api
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting import read_report, write_reports
from tests.cli.command import Command, Ended, is_one_line

WORDS = {"start", "open", "weights", "forward", "generate", "ladder", "decide"}


@pytest.fixture(autouse=True)
def json_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the charts where no test looks at them."""

    def save(report: AuditReport, folder: str | Path, formats: Iterable[str]) -> dict[str, Path]:
        return write_reports(report, Path(folder), ()) | {"html": Path(folder) / "report.html"}

    if "views" not in request.node.name:
        monkeypatch.setattr(api, "save", save)


def run(quantaudit: Command, *arguments: str | Path) -> Ended:
    return quantaudit("run", *arguments, "--threads", "1", "-o", "out")


def report() -> AuditReport:
    return read_report(Path("out") / "report.json")


def outcome_of(clause: str, told: AuditReport) -> Outcome:
    return next(c.decision.outcome for c in told.clauses if c.name == clause)


def test_a_packed_deployment_is_audited_by_path(written: Path, quantaudit: Command) -> None:
    told = {}
    for lo in ("packed", "sharded"):
        ended = run(quantaudit, written / "plain", "--lo", written / lo)
        told[lo] = report()
        assert ended.code in (3, 4) and int(told[lo].verdict.exit_code) == ended.code
        assert (told[lo].hi.source, told[lo].lo.source, told[lo].recipe) == ("plain", lo, None)
        assert told[lo].hi.num_quantized_tensors == 0
        assert told[lo].lo.num_quantized_tensors == told[lo].lo.num_expert_tensors == 36
        assert told[lo].lo.stored_bits_per_expert_weight == 4.25
        assert outcome_of("integrity", told[lo]) is Outcome.PASS
    one, shards = told["packed"], told["sharded"]
    assert one.lo.weights_digest == shards.lo.weights_digest
    assert [c.estimate for c in one.clauses] == [c.estimate for c in shards.clauses]


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_equal_sides_are_admitted_exactly(name: str, written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / name, "--lo", written / name, "--json")
    told = report()
    assert told.verdict.admission is Admission.ADMIT and ended.code == 0
    assert told.notes[0].startswith("0 of ")
    for gate in told.gates():
        assert gate.decision.outcome is Outcome.PASS
        assert gate.hi == gate.lo or gate.name == "degeneracy"
    printed = json.loads(ended.out)
    assert printed.pop("report_digest") == told.report_digest()
    assert AuditReport.model_validate(printed) == told
    assert {line.split(":")[0] for line in ended.err.splitlines()} == WORDS


def test_equal_values_in_other_bytes_are_admitted_exactly(written: Path, quantaudit: Command, tmp_path: Path) -> None:
    decoded = decode_experts(written / "packed", tmp_path / "decoded")
    ended = run(quantaudit, decoded, "--lo", written / "sharded")
    assert ended.code == 0 and report().verdict.admission is Admission.ADMIT


def test_other_weights_are_not_admitted(written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / "plain", "--lo", written / "other")
    assert ended.code in (3, 4) and report().verdict.admission is not Admission.ADMIT


def test_stored_codes_are_kept_and_no_baseline_is_invented(written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / "packed", "--recipe", "k3-w4a16")
    told = report()
    assert "no full-precision baseline" in " ".join(told.notes)
    assert "keep their codes" in " ".join(told.notes)
    assert told.notes[0].startswith("0 of ")
    assert ended.code == 0 and told.verdict.admission is Admission.ADMIT


@pytest.mark.parametrize("hi", ["plain", "packed"])
def test_the_identity_is_admitted_exactly(hi: str, written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / hi, "--recipe", "identity")
    assert ended.code == 0 and report().verdict.admission is Admission.ADMIT
    assert report().notes[0].startswith("0 of ")


def test_a_recipe_that_changes_nothing_it_should_change_is_not_measured(
    written: Path, quantaudit: Command, tmp_path: Path
) -> None:
    decoded = decode_experts(written / "packed", tmp_path / "decoded")
    ended = run(quantaudit, decoded, "--recipe", "k3-w4a16")
    message = ended.err.splitlines()[-1] + "\n"
    assert ended.code == 4 and ended.out == "" and is_one_line(message)
    assert message.startswith("quantaudit: not measured: the recipe changed none of ")
    assert not Path("out").exists()


def test_double_quantization_that_is_asked_for_is_reported(written: Path, quantaudit: Command, tmp_path: Path) -> None:
    recipe = tmp_path / "again.toml"
    recipe.write_text(
        'name = "again"\nrequantize = true\n[[rules]]\nmatch = "layers.*.experts.*"\nweight = "int4-g32-div7"\n'
    )
    run(quantaudit, written / "packed", "--recipe", recipe)
    assert "double quantization" in " ".join(report().notes)


def test_the_summary_is_short_and_plain_and_the_views_can_be_made_again(written: Path, quantaudit: Command) -> None:
    first = run(quantaudit, written / "plain", "--lo", written / "other")
    assert first.out.count("\n") <= 25 and first.out.isascii() and "\x1b" not in first.out
    again = quantaudit("report", "out/report.json", "-o", "again")
    assert again.code == 0 and again.err == ""
    assert again.out.replace("again/", "out/") == first.out
    files = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert {"report.json", "report.md", "report.html"} <= set(files)
    assert {path.name: path.read_bytes() for path in Path("again").iterdir()} == files


def test_two_runs_give_one_digest(written: Path, quantaudit: Command) -> None:
    digests = set()
    for _ in range(2):
        run(quantaudit, written / "plain", "--recipe", "k3-w4a8")
        digests.add(report().report_digest())
    assert len(digests) == 1


def decode_experts(packed: Path, target: Path) -> Path:
    """Writes the exactly decoded bf16 twin of a packed checkpoint."""
    checkpoint = open_checkpoint(packed)
    parameters = ((name, p.detach()) for name, p in load_model(checkpoint).named_parameters())
    write_checkpoint(target, checkpoint.config, parameters, scheme=None, shard_bytes=None)
    return target
