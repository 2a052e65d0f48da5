"""The committed JSON schemas are those of the types, and what verbs print is valid under them, strictly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import save_file

from benchmarks.schemas import TYPES, path_of
from quantaudit.core.json_schema import write_schema
from quantaudit.core.serial import Frozen
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_path import fingerprint
from quantaudit.identity.identify_paths import identify
from quantaudit.numerics import get_scheme, pack, quantize
from quantaudit.verbs.certify import certify

REPORTS = Path(__file__).resolve().parents[2] / "reports"
MASTER = torch.randn(32, 64, generator=torch.Generator().manual_seed(4)).bfloat16()


def problems(name: str, text: str) -> list[str]:
    """Returns what a validator finds wrong with an output."""
    validator = Draft202012Validator(json.loads(path_of(name).read_text()))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(json.loads(text))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A matrix and the same packed, with one block of infinite values."""
    root = tmp_path_factory.mktemp("schemas")
    scheme = get_scheme("mxfp4-even")
    quantized = quantize(MASTER, scheme)
    quantized.scales[0, 0] = 254
    codes = {"x.weight_packed": pack(quantized.codes, scheme.layout), "x.weight_scale": quantized.scales}
    save_file({"x.weight": MASTER}, root / "hi.safetensors")
    save_file(codes, root / "lo.safetensors")
    return root / "hi.safetensors", root / "lo.safetensors"


MADE: dict[str, Callable[[Path, Path], Frozen]] = {
    "compare": lambda hi, lo: compare(hi, lo, threads=1),
    "identify": lambda hi, lo: identify(lo, master=hi, threads=1),
    "fingerprint": lambda hi, lo: fingerprint(lo, threads=1),
    "certify": lambda hi, lo: certify("mxfp4-even", "mxfp4-even-away", threads=1),
}


@pytest.mark.parametrize("name", TYPES)
def test_committed_schemas_are_current(name: str) -> None:
    assert path_of(name).read_text() == write_schema(TYPES[name]), "run `python -m benchmarks.schemas`"


@pytest.mark.parametrize("name", MADE)
def test_what_a_verb_prints_is_valid(name: str, files: tuple[Path, Path]) -> None:
    assert problems(name, MADE[name](*files).to_json()) == []


def test_published_reports_are_valid() -> None:
    assert problems("run", (REPORTS / "embedded-k3-w4a8" / "report.json").read_text()) == []
    assert problems("conformance", (REPORTS / "conformance.json").read_text()) == []


def test_another_key_and_a_bare_null_are_invalid(files: tuple[Path, Path]) -> None:
    made = json.loads(MADE["compare"](*files).to_json())
    assert problems("compare", json.dumps(made | {"extra": 1}))
    assert problems("compare", json.dumps({k: v for k, v in made.items() if k != "diagnosis"}))
    assert problems("compare", json.dumps(made | {"identical": None}))


def test_numbers_that_are_not_finite_are_tagged(files: tuple[Path, Path]) -> None:
    text = MADE["compare"](*files).to_json()
    assert 'Infinity"' in text and problems("compare", text) == []
