"""The twins, run eagerly and compiled, give the bits of the reference, on special groups and at both ends of fp32."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import ExponentRounding, ExponentScale, LinearScale, PerBlock, Scheme, Tie
from quantaudit.numerics import (
    compiler,
    fake_quantize,
    fused,
    fused_fake_quantize,
    fused_status,
    get_scheme,
    scheme_names,
)
from quantaudit.numerics.twins import Twin, has_twin, make_twin
from tests.numerics.bits import all_bf16, assert_same_bits
from tests.numerics.structured import MATRICES

COVERED = [name for name in scheme_names() if has_twin(get_scheme(name))]


def form_of(name: str) -> tuple[type, type, type]:
    """Returns what decides the code of a twin, but for its constants."""
    scheme = get_scheme(name)
    return type(scheme.element), type(scheme.granularity), type(scheme.scale)


FORMS = list({form_of(name): name for name in reversed(COVERED)}.values())[::-1]
# torch's compiler, while it is imported, uses a function that torch deprecates.
SILENT = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
NEEDS_COMPILER = pytest.mark.skipif(compiler.why_eager("cpu") is not None, reason="no C++ compiler")
DTYPES = [torch.float32, torch.bfloat16]


def sweep() -> Tensor:
    """Stacks all structured matrices, every bf16 number, and groups at every exponent: [384, 1024]."""
    everything = all_bf16().float().view(256, 256)
    exponents = torch.exp2(torch.arange(-149, 128, dtype=torch.float64)).float()
    scaled = (torch.randn(277, 256).clamp(-1.9, 1.9) * exponents.unsqueeze(1)) if len(exponents) else everything
    rows = [make() for make in MATRICES.values()] + [everything, scaled]
    stacked = torch.cat(rows)
    fill = -len(stacked) % 512
    return torch.cat([stacked, torch.randn(fill, 256)]).view(-1, 1024)


def fitting(x: Tensor, scheme: Scheme) -> Tensor:
    """Cuts a sweep to whole blocks."""
    return x[: len(x) // 128 * 128] if isinstance(scheme.granularity, PerBlock) else x


def test_every_scheme_without_a_twin_has_a_reason() -> None:
    assert {"mxfp4-even", "mxfp8-e4m3-even", "int4-g32-div7.5", "fp8-block128", "int8-channel"} <= set(COVERED)
    assert len(FORMS) == len({form_of(name) for name in COVERED}) >= 6
    others = set(scheme_names()) - set(COVERED)
    reasons = ("-away", "-zero", "-native", "b64", "b4096", "nvfp4", "gguf-")
    assert all(any(reason in n for reason in reasons) for n in others - _per_tensor())


def _per_tensor() -> set[str]:
    return {"fp8-tensor", "fp8-tensor-ue8m0"}


def test_what_a_twin_would_get_wrong_has_none() -> None:
    scheme, floor = get_scheme("int4-g32-div7"), get_scheme("mxfp4-floor")
    assert not has_twin(floor.model_copy(update={"tie": Tie.AWAY}))
    assert not has_twin(floor.model_copy(update={"scale": _exponent(divisor=6.0, zero_code=127)}))
    assert not has_twin(floor.model_copy(update={"scale": _exponent(divisor=6.0, amax_floor=1.0)}))
    assert not has_twin(floor.model_copy(update={"scale": _exponent(divisor=1.0)}))
    assert not has_twin(scheme.model_copy(update={"scale": LinearScale(divisor=7.0, zero_scale=1.0)}))
    assert not has_twin(get_scheme("nf4-b64")) and not has_twin(get_scheme("nvfp4"))


def _exponent(*, divisor: float, zero_code: int = 0, amax_floor: float = 0.0) -> ExponentScale:
    return ExponentScale(rounding=ExponentRounding.FLOOR, divisor=divisor, zero_code=zero_code, amax_floor=amax_floor)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", COVERED)
def test_the_formulas_give_the_bits_of_the_reference(name: str, dtype: torch.dtype) -> None:
    scheme = get_scheme(name)
    x = fitting(sweep().to(dtype), scheme)
    out = torch.full_like(x, math.nan)
    assert fused_fake_quantize(x, scheme, out) is out
    assert_same_bits(out, fake_quantize(x, scheme))
    if not isinstance(scheme.granularity, PerBlock):
        assert_same_bits(fused_fake_quantize(x[0], scheme), fake_quantize(x[0], scheme))


def assert_compiled_equals_reference(name: str, dtype: torch.dtype) -> None:
    """Compares on two shapes, one of which is not a whole number of pieces, and into a poisoned buffer."""
    scheme = get_scheme(name)
    x = fitting(sweep().to(dtype), scheme)
    for shaped in (x, x[:128] if isinstance(scheme.granularity, PerBlock) else x[:128].reshape(2, 64, 1024)):
        out = torch.full_like(shaped, math.nan)
        assert fused_fake_quantize(shaped, scheme, out, compile_after=0) is out
        assert_same_bits(out, fake_quantize(shaped, scheme))
    assert compiler.why_eager("cpu") is None, "the comparison was of eager code with itself"


@SILENT
@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["mxfp4-even", "int4-g32-div7"])
def test_compiled_code_gives_the_bits_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "COMPILED_PIECE", 1 << 16)
    assert_compiled_equals_reference(name, torch.float32)


@pytest.mark.slow
@SILENT
@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in FORMS for dtype in (torch.float32, torch.bfloat16)],
    ids=str,
)
def test_every_twin_compiles_to_the_bits_of_the_reference(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "COMPILED_PIECE", 1 << 16)
    assert_compiled_equals_reference(name, dtype)


def never(*_: object) -> Tensor:
    """Stands for something that must not be called."""
    raise AssertionError("called")


def test_small_tensors_meet_neither_a_compiler_nor_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scheme = torch.randn(130, 160), get_scheme("mxfp4-even")
    expected = fake_quantize(x, scheme)
    monkeypatch.setattr(fused, "_compiled_twin", never)
    monkeypatch.setattr(fused, "fake_quantize", never)
    assert_same_bits(fused_fake_quantize(x, scheme), expected)


def test_without_a_twin_whole_blocks_or_contiguous_memory_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "make_twin", never)
    x = torch.randn(130, 160)
    block, group = "fp8-block128", "mxfp4-even"
    views = [("nf4-b64", x), (block, x[:128]), (block, torch.randn(130, 128)), (group, x[:, :64]), (group, x[:0])]
    for name, view in views:
        expected = fake_quantize(view, get_scheme(name))
        assert_same_bits(fused_fake_quantize(view, get_scheme(name), compile_after=0), expected)


def test_the_compiler_is_called_when_enough_values_have_been_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compiled(*_: object) -> Twin:
        calls.append(1)
        return make_twin(get_scheme("mxfp4-even"))

    monkeypatch.setattr(fused, "_compiled_twin", compiled)
    monkeypatch.setattr(fused, "_num_eager", Counter())
    monkeypatch.setattr(compiler, "why_eager", lambda _: None)
    monkeypatch.setattr(fused, "why_eager", lambda _: None)
    for expected_calls in (0, 0, 1, 2):
        fused_fake_quantize(torch.randn(4, 64), get_scheme("mxfp4-even"), compile_after=512)
        assert len(calls) == expected_calls


def test_every_scheme_dtype_and_device_is_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_num_eager", Counter())
    monkeypatch.setattr(fused, "_compiled_twin", never)
    for name in ("mxfp4-even", "mxfp8-e4m3-even", "int8-channel"):
        for dtype in DTYPES:
            fused_fake_quantize(torch.randn(4, 64).to(dtype), get_scheme(name), compile_after=512)
    assert sorted(fused._num_eager.values()) == [256] * 6


def test_a_failing_compiler_is_reported_and_eager_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Tensor, target: Tensor) -> None:
        raise RuntimeError("no room on the device\nmore lines")

    monkeypatch.setattr(fused, "_compiled_twin", lambda *_: fail)
    monkeypatch.setattr(compiler, "_failures", {})
    x = torch.randn(4, 64)
    expected = fake_quantize(x, get_scheme("mxfp4-even"))
    assert_same_bits(fused_fake_quantize(x, get_scheme("mxfp4-even"), compile_after=0), expected)
    if NEEDS_COMPILER.args == (False,):
        assert "equal bits: compiling failed (RuntimeError: no room on the device more lines)" in fused_status()


@pytest.mark.parametrize(
    "out",
    [torch.zeros(4, 63), torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(64, 4).T],
    ids=["shape", "dtype", "strides"],
)
def test_a_buffer_that_does_not_fit_is_refused(out: Tensor) -> None:
    with pytest.raises(InputError, match="output buffer"):
        fused_fake_quantize(torch.randn(4, 64), get_scheme("mxfp4-even"), out)


def test_a_buffer_that_is_the_input_is_refused() -> None:
    x = torch.randn(4, 64)
    with pytest.raises(InputError, match="memory of its own"):
        fused_fake_quantize(x, get_scheme("mxfp4-even"), x)


_NO_COMPILER = """
import sys, torch
from quantaudit.numerics import fake_quantize, fused_fake_quantize, fused_status, get_scheme
torch.manual_seed(0)
x, scheme = torch.randn(64, 64), get_scheme("mxfp4-even")
same = torch.equal(fused_fake_quantize(x, scheme, compile_after=0), fake_quantize(x, scheme))
print(fused_status())
sys.exit(0 if same and "torch._dynamo" not in sys.modules else 1)
"""


def test_without_a_compiler_eager_code_runs_with_equal_bits_and_says_so(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "PATH")} | {"PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", _NO_COMPILER], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "Eager code" in run.stdout and "equal bits: no C++ compiler" in run.stdout
    assert len(run.stdout.splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", scheme_names())
def test_a_gpu_gives_the_bits_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    scheme = get_scheme(name)
    for make in MATRICES.values():
        x = make().to(dtype)
        assert_same_bits(fake_quantize(x.cuda(), scheme), fake_quantize(x, scheme))
    if has_twin(scheme):
        x = fitting(sweep().to(dtype), scheme)
        assert_same_bits(fused_fake_quantize(x.cuda(), scheme, compile_after=0), fake_quantize(x, scheme))
