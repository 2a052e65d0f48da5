"""`run HI --lo PATH` and `run HI --recipe R` on checkpoints of disk: bf16 or packed, one file or shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting import read_report
from tests.cli.command import Command, Ended, is_one_line

GATES_OF_INTEGRITY = ("integrity",)
LENIENT = """
name = "lenient"
min_probes = 1
min_clusters = 5
[[clauses]]
name = "integrity"
stage = "integrity"
observer = "integrity"
[[clauses]]
name = "fidelity"
stage = "fidelity"
observer = "nll"
margin = 0.02
"""


def run(quantaudit: Command, *arguments: str | Path) -> Ended:
    return quantaudit("run", *arguments, "--threads", "1", "-o", "out")


def report() -> AuditReport:
    return read_report(Path("out") / "report.json")


@pytest.mark.parametrize("lo", ["packed", "sharded"])
def test_a_packed_deployment_is_audited_by_path(lo: str, written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / "plain", "--lo", written / lo)
    assert ended.code in (3, 4)
    told = report()
    assert int(told.verdict.exit_code) == ended.code
    assert (told.hi.source, told.lo.source) == ("plain", lo)
    assert told.hi.num_quantized_tensors == 0
    assert told.lo.num_quantized_tensors == told.lo.num_expert_tensors == 36
    assert told.lo.stored_bits_per_expert_weight == 4.25
    assert told.recipe is None
    integrity = next(c for c in told.clauses if c.name == "integrity")
    assert integrity.decision.outcome.value == "pass"


def test_one_file_and_shards_are_one_model(written: Path, quantaudit: Command) -> None:
    run(quantaudit, written / "plain", "--lo", written / "packed")
    first = report()
    run(quantaudit, written / "plain", "--lo", written / "sharded")
    second = report()
    assert first.lo.weights_digest == second.lo.weights_digest
    assert [c.estimate for c in first.clauses] == [c.estimate for c in second.clauses]


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_equal_sides_are_admitted_exactly(name: str, written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / name, "--lo", written / name)
    told = report()
    assert told.verdict.admission is Admission.ADMIT and ended.code == 0
    assert told.notes[0].startswith("0 of ")
    for gate in told.gates():
        assert gate.estimate is None or gate.estimate.value == 0


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
    assert told.hi.weights_digest == told.lo.weights_digest
    assert ended.code == 0 and told.verdict.admission is Admission.ADMIT


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


def test_json_is_all_that_is_on_stdout(written: Path, quantaudit: Command) -> None:
    ended = run(quantaudit, written / "plain", "--lo", written / "plain", "--json")
    assert AuditReport.model_validate(json.loads(ended.out)) == report()
    assert {line.split(":")[0] for line in ended.err.splitlines()} == {"open", "weights", "forward", "decide"}


def test_the_report_is_rendered_again_without_the_models(written: Path, quantaudit: Command) -> None:
    first = run(quantaudit, written / "plain", "--lo", written / "plain")
    files = {path.name for path in Path("out").iterdir()}
    assert {"report.json", "report.md", "report.html"} <= files
    again = quantaudit("report", "out/report.json", "-o", "again")
    assert again.code == 0 and again.err == ""
    assert again.out.replace("again/", "out/") == first.out
    for name in ("report.json", "report.md", "report.html"):
        assert (Path("again") / name).read_bytes() == (Path("out") / name).read_bytes()


def test_a_summary_is_short_and_plain_in_a_pipe(written: Path, quantaudit: Command) -> None:
    out = run(quantaudit, written / "plain", "--lo", written / "other").out
    assert out.count("\n") <= 25 and out.isascii() and "\x1b" not in out


def test_two_runs_give_one_digest(written: Path, quantaudit: Command) -> None:
    digests = set()
    for _ in range(2):
        run(quantaudit, written / "plain", "--recipe", "k3-w4a8")
        digests.add(report().report_digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("out/report.json", "--to", "pdf"), "report format 'pdf'"),
        (("out/report.json", "-o", "out/report.md"), "cannot be written"),
        (("out/no.json",), "no such file"),
        (("out/report.md",), "is no audit report"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused(
    arguments: tuple[str, ...], said: str, written: Path, quantaudit: Command
) -> None:
    run(quantaudit, written / "plain", "--lo", written / "plain")
    before = sorted(Path.cwd().rglob("*"))
    ended = quantaudit("report", *arguments)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err
    assert sorted(Path.cwd().rglob("*")) == before


def decode_experts(packed: Path, target: Path) -> Path:
    """Writes the exactly decoded bf16 twin of a packed checkpoint."""
    from quantaudit.checkpoint.load import load_model
    from quantaudit.checkpoint.reader import open_checkpoint
    from quantaudit.checkpoint.writer import write_checkpoint

    checkpoint = open_checkpoint(packed)
    parameters = ((name, p.detach()) for name, p in load_model(checkpoint).named_parameters())
    write_checkpoint(target, checkpoint.config, parameters, scheme=None, shard_bytes=None)
    return target
