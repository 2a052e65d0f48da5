"""The facade checks everything before it imports torch, and says what it audited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantaudit import api
from quantaudit.core.errors import InputError
from quantaudit.core.probe import Split
from quantaudit.core.report import AuditReport
from quantaudit.registered import PROBE_SETS

ROOT = Path(__file__).resolve().parents[1]


def interpret(code: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_facade_needs_no_torch_and_no_charts() -> None:
    heavy = ["torch", "scipy", "pandas", "altair", "statsmodels"]
    code = f"import sys, quantaudit; quantaudit.audit; print([n for n in {heavy} if n in sys.modules])"
    assert interpret(code) == "[]"


@pytest.mark.parametrize("kind", ["schemes", "recipes", "contracts", "probes"])
def test_listing_needs_no_torch(kind: str) -> None:
    code = f"import sys; from quantaudit.api import list_entries; list_entries({kind!r}); print('torch' in sys.modules)"
    assert interpret(code) == "False"


def test_an_unknown_recipe_is_found_before_the_model_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the recipe 'nope'"):
        api.audit(tmp_path / "no-model", recipe="nope")


def test_checking_an_output_leaves_no_trace(tmp_path: Path) -> None:
    api.check_output(tmp_path / "a" / "b" / "c")
    api.check_output(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "deep" / "er"):
        with pytest.raises(InputError, match="cannot be written"):
            api.check_output(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(InputError, match="Permission denied"):
        api.check_output(tmp_path / "locked" / "out")


def test_a_report_with_another_ending_is_refused() -> None:
    report = AuditReport.model_construct()
    with pytest.raises(InputError, match=r"a report named 'audit\.pdf'; expected a name ending in \.json"):
        api.render(report, "audit.pdf")


def test_probes_of_the_training_split_are_never_offered() -> None:
    assert set(PROBE_SETS.values()) == {Split.AUDIT, Split.SELECT}
    with pytest.raises(InputError, match="one of world/audit, world/select"):
        api.open_probes("world/train")


def test_the_command_of_a_report_can_be_typed_again() -> None:
    assert api._command(None, None, None, "default", "world/audit") == "quantaudit run"
    assert (
        api._command("my models/a", "b", None, "./strict.toml", "world/select")
        == "quantaudit run 'my models/a' --lo b --contract ./strict.toml --probes world/select"
    )
    assert api._command(None, None, "int2", "default", "world/audit") == "quantaudit run --recipe int2"


def test_a_source_is_the_last_name_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert api._source(Path()) == api._source(Path("../model/")) == "model"
