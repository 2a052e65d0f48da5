"""The check for GPU machines finds a planted difference, is silent on equal bits, and says where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from quantaudit.core.scheme import Scheme
from quantaudit.core.verdict import ExitCode
from quantaudit.numerics import QuantizedTensor, fused_fake_quantize, get_scheme, quantize

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu_check.main(["-o", str(tmp_path / "result.json")]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "no CUDA device" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", gpu_check.DTYPES)
@pytest.mark.parametrize("name", ["mxfp4-even", "nvfp4", "fp8-block128", "nf4-b64-double", "int8-channel"])
def test_equal_bits_are_silent(name: str, dtype: torch.dtype) -> None:
    assert gpu_check.check_reference(get_scheme(name), dtype, CPU).difference is None
    assert gpu_check.check_twin(get_scheme(name), dtype, CPU, compiled=False).difference is None


@pytest.mark.parametrize(("row", "what"), [(0, "structured"), (199, "structured")])
def test_one_wrong_code_is_found(row: int, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def spoil(x: torch.Tensor, scheme: Scheme) -> QuantizedTensor:
        nonlocal calls
        calls += 1
        q = quantize(x, scheme)
        if calls == 1:
            q.codes[row, 5] ^= 1
        return q

    monkeypatch.setattr(gpu_check, "quantize", spoil)
    found = gpu_check.check_reference(get_scheme("mxfp4-even"), torch.float32, CPU).difference
    assert found is not None and found.startswith(f"{what} matrix: the code at [{row}, 5]")


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0"])
def test_partial_blocks_are_compared_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = get_scheme(name)
    shapes = {tuple(x.shape) for x in gpu_check.matrices_for(scheme, torch.float32, gpu_check.PARTIAL).values()}
    assert shapes == {(200, 300)}

    def spoil(x: torch.Tensor, scheme: Scheme, **_: int) -> torch.Tensor:
        out = fused_fake_quantize(x, scheme)
        if x.shape == (200, 300):
            out[199, 299] += 1.0
        return out

    monkeypatch.setattr(gpu_check, "fused_fake_quantize", spoil)
    found = gpu_check.check_twin(scheme, torch.float32, CPU, compiled=False).difference
    assert found is not None and found.startswith("structured matrix of [200, 300]: the value at [199, 299]")


def test_nan_is_one_number_and_zeros_have_signs() -> None:
    nan = torch.tensor([0x7FC00000, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    assert gpu_check.first_difference("x", nan, nan.flip(0)) is None
    assert gpu_check.first_difference("x", torch.zeros(1), -torch.zeros(1)) is not None
    assert gpu_check.first_difference("x", None, torch.zeros(1)) == "x is missing on one side"


def result(**changes: object) -> gpu_check.GpuCheck:
    base = gpu_check.GpuCheck(
        device="none",
        torch_version="0",
        schemes=(),
        not_reached=(),
        audits=(),
        throughput=(),
        seconds=0.0,
    )
    return base.model_copy(update=changes)


def test_the_exit_code_follows_what_was_found() -> None:
    check = gpu_check.SchemeCheck(scheme="s", dtype="float32", path="reference", difference=None)
    audit = gpu_check.AuditCheck(
        recipe="r",
        cpu_verdict="ADMIT",
        gpu_verdict="ADMIT",
        differing_gates=(),
        largest_difference=0.0,
        seconds=(1.0, 1.0),
    )
    assert result(schemes=(check,), audits=(audit,)).exit_code() is ExitCode.PASS
    assert result(not_reached=("x",)).exit_code() is ExitCode.INCONCLUSIVE
    assert result(schemes=(check.model_copy(update={"difference": "d"}),)).exit_code() is ExitCode.REJECTED
    other = audit.model_copy(update={"gpu_verdict": "REJECT"})
    gate = audit.model_copy(update={"differing_gates": ("fidelity",)})
    assert result(audits=(other,)).exit_code() is result(audits=(gate,)).exit_code() is ExitCode.REJECTED


@pytest.mark.gpu
@pytest.mark.slow
def test_a_gpu_changes_neither_bits_nor_verdicts(tmp_path: Path) -> None:
    code = gpu_check.main(["-o", str(tmp_path / "result.json"), "--probes", "30", "--fused-seconds", "30"])
    assert code in (ExitCode.PASS, ExitCode.INCONCLUSIVE) and (tmp_path / "result.json").exists()


def test_the_whole_script_runs_with_the_cpu_in_place_of_a_gpu(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "embedded_model_folder", lambda: written / "plain")
    monkeypatch.setattr(gpu_check, "scheme_names", lambda: ("mxfp4-even", "nvfp4"))
    monkeypatch.setattr(gpu_check, "HOT", ())
    monkeypatch.setattr(gpu_check, "THROUGHPUT_SIZE", 64)
    monkeypatch.setattr(gpu_check, "RECIPES", ("identity", "k3-w4a8"))
    found = gpu_check.check_device(CPU, probes_a_family=6, fused_seconds=0.0, threads=1)
    assert [c for c in found.schemes if c.difference is not None] == []
    assert {c.path for c in found.schemes} == {"reference", "twin"}
    assert [a.cpu_verdict for a in found.audits] == [a.gpu_verdict for a in found.audits]
    assert found.audits[0].cpu_verdict == "ADMIT" and found.audits[0].largest_difference == 0.0
    assert found.not_reached and found.exit_code() is ExitCode.INCONCLUSIVE
    assert gpu_check.GpuCheck.from_json(found.to_json()) == found
    gpu_check.print_result(found)
    assert "audit identity: ADMIT on the CPU" in capsys.readouterr().out
