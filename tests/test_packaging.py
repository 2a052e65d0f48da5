"""The project installs as it claims: one version, pinned dependencies, four make targets, and a wheel that is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

import quantaudit
from quantaudit.core.recipe_file import contract_names, load_recipe, recipe_names
from quantaudit.numerics import fake_quantize, get_scheme

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
UNPINNED = {"nvidia-modelopt"}  # never part of the tested environment

# Shapes of the embedded model's experts, [experts, out, in], w1 and w3 then w2, and one with partial FP8 tiles.
EXPERT_SHAPES = [(2, 32, 64), (2, 64, 32), (1, 160, 192)]


def pins() -> dict[str, str]:
    """Reads constraints.txt, all of whose lines are exact pins."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    found = [re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return {match[1]: match[2] for match in found if match}


def requirements() -> dict[str, str]:
    """Returns the lower bound of every direct dependency, extras included; empty where there is none."""
    lines = [*PROJECT["dependencies"], *(x for extra in PROJECT["optional-dependencies"].values() for x in extra)]
    return {name: bound for name, _, bound in (line.partition(">=") for line in lines)}


def test_torch_is_pinned_first() -> None:
    assert next(iter(pins())) == "torch"


def test_every_direct_dependency_is_pinned_at_or_above_its_bound() -> None:
    assert set(pins()) == set(requirements()) - UNPINNED
    for name, pin in pins().items():
        bound = requirements()[name]
        assert [int(x) for x in pin.split(".post")[0].split(".")] >= [int(x) for x in bound.split(".")], name


def test_make_has_five_targets_and_keeps_out_of_the_environment() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", text, flags=re.M)
    assert targets == ["audit", "test", "test-slow", "check", "bench"]
    assert "?=" not in text


def test_make_takes_no_setting_from_the_environment() -> None:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    hostile = {**outer, "PYTHON": "/no/python", "TEST_FLAGS": "--no-such-flag", "VENV": "/no/venv"}
    run = subprocess.run(["make", "-nB", "test"], cwd=ROOT, env=hostile, capture_output=True, text=True, check=True)
    assert "/no/" not in run.stdout
    assert "--no-such-flag" not in run.stdout


@pytest.mark.parametrize("name", recipe_names())
def test_every_scheme_of_a_bundled_recipe_exists_and_fits_the_embedded_experts(name: str) -> None:
    for rule in load_recipe(name).rules:
        for scheme in filter(None, (rule.weight, rule.activation)):
            for shape in EXPERT_SHAPES:
                decoded = fake_quantize(torch.randn(shape), get_scheme(scheme))
                assert decoded.shape == shape
                assert decoded.isfinite().all()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel as an installer would, but with the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_one_version(wheel: Path) -> None:
    assert wheel.name == f"quantaudit-{quantaudit.__version__}-py3-none-any.whl"


def test_the_wheel_holds_code_recipes_and_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder, prefix in (("recipes", "quantaudit/_recipes"), ("quantaudit", "quantaudit")):
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        missing = {f"{prefix}/{p.relative_to(ROOT / folder).as_posix()}" for p in files} - set(names)
        assert missing == set()
    assert "quantaudit/py.typed" in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"quantaudit"}
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_an_unpacked_wheel_finds_its_own_recipes(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import quantaudit; from quantaudit.core import recipe_file as f, resources as r;"
        "print(quantaudit.__file__, r.recipes_folder(), *f.recipe_names(), *f.contract_names(), sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    init, recipes, *names = run.stdout.splitlines()
    assert Path(init) == tmp_path / "quantaudit" / "__init__.py"
    assert Path(recipes) == tmp_path / "quantaudit" / "_recipes"
    assert tuple(names) == recipe_names() + contract_names()
