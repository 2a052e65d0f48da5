"""Kept controls come back to the last bit, under a key of all they depend on; what does not fit is measured anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantaudit.core.report import Environment
from quantaudit.core.serial import digest_of
from quantaudit.evaluation import cache
from quantaudit.evaluation.archive import ArchiveError, freeze, thaw
from quantaudit.evaluation.cache import (
    ControlKey,
    controls_of,
    load_controls,
    measure_with_kept,
    store_controls,
    without_biases,
)
from quantaudit.evaluation.measure import Controls, Measurements
from quantaudit.evaluation.table import Table
from quantaudit.observers.sums import HiddenSums
from tests.evaluation.synthetic import PROBES, at, evidence, harmed

ENVIRONMENT = Environment(
    quantaudit="0",
    python="3",
    torch="2",
    device="cpu",
    cpu_capability="AVX2",
    threads=1,
    batch_size=96,
    compute_dtype="float32",
    fused_kernels="no",
)
KEY = ControlKey(weights_digest="w", probes_digest="p", contract_digest="c", environment=ENVIRONMENT)


def measured(floor: Table | None = None) -> Measurements:
    return evidence(harmed("accuracy", at(), 0.0), floor=floor or harmed("nll", at(), 1e-7)).measurements


@pytest.fixture(scope="module")
def now() -> Measurements:
    return measured()


class Pass:
    """A pass that says whether controls were taken over."""

    def __init__(self, result: Measurements) -> None:
        self.result = result
        self.taken: list[bool] = []

    def __call__(self, kept: Controls | None) -> Measurements:
        self.taken.append(kept is not None)
        return self.result


def test_controls_come_back_to_the_last_bit(now: Measurements, tmp_path: Path) -> None:
    now.floor.parts["nll"][0].lo_R[:4] = [0.1 + 0.2, np.nan, -np.inf, -0.0]
    assert store_controls(tmp_path, KEY, now, run="then")
    kept = load_controls(tmp_path, KEY)
    assert kept is not None and kept.run == "then"
    again, before = freeze(kept.controls), freeze(without_biases(controls_of(now)))
    assert json.dumps(again, sort_keys=True) == json.dumps(before, sort_keys=True)
    back, there = kept.controls.floor.readings("nll").lo_R, now.floor.readings("nll").lo_R
    assert back.tobytes() == there.tobytes() and back.dtype == there.dtype and back.flags.writeable


def test_the_second_run_takes_over_and_names_the_first(tmp_path: Path) -> None:
    run = Pass(measured())
    first = measure_with_kept(run, tmp_path, KEY, run="first")
    second = measure_with_kept(run, tmp_path, KEY, run="second")
    assert (first.controls_from, second.controls_from, run.taken) == (None, "first", [False, True])


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    run = Pass(measured())
    assert [measure_with_kept(run, None, KEY, run="x").controls_from for _ in range(2)] == [None, None]
    assert run.taken == [False, False] and list(tmp_path.iterdir()) == []


def test_every_part_of_the_key_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {KEY.digest()}
    for name in ("weights_digest", "probes_digest", "contract_digest"):
        digests.add(replace(KEY, **{name: "x"}).digest())  # type: ignore[arg-type]
    for name in Environment.model_fields:
        changed = ENVIRONMENT.model_copy(update={name: 7 if name in ("threads", "batch_size") else "x"})
        digests.add(replace(KEY, environment=changed).digest())
    monkeypatch.setattr(cache, "source_digest", lambda: "other code")
    digests.add(KEY.digest())
    assert len(digests) == 1 + 3 + len(Environment.model_fields) + 1


def test_hi_that_reads_otherwise_than_then_is_measured_anew(tmp_path: Path) -> None:
    then = measured()
    for change in (_another_number, _another_probe, _another_observer):
        store_controls(tmp_path, KEY, replace(then, floor=change(harmed("nll", at(), 1e-7))), run="then")
        run = Pass(then)
        assert measure_with_kept(run, tmp_path, KEY, run="now").controls_from is None
        assert run.taken == [True, False]
        kept = load_controls(tmp_path, KEY)
        assert kept is not None and kept.run == "now", "a good one takes its place"


def _another_number(table: Table) -> Table:
    table.parts["answer-margin"][0].hi_R[5] = np.nextafter(table.parts["answer-margin"][0].hi_R[5], 9)
    return table


def _another_probe(table: Table) -> Table:
    table.parts["accuracy"][0].index_R[0] += len(PROBES.probes)
    return table


def _another_observer(table: Table) -> Table:
    table.parts["strange"] = table.parts.pop("k3")
    return table


def test_other_norms_and_other_faults_are_measured_anew(tmp_path: Path) -> None:
    then = measured()
    norms = replace(then.floor_sums, hidden={0: HiddenSums(signal=1.0000001, error=0.0)})
    other = [replace(then, floor_sums=norms), replace(then, faults={"shifted-vocabulary": Table()})]
    for changed in other:
        store_controls(tmp_path, KEY, changed, run="then")
        assert measure_with_kept(Pass(then), tmp_path, KEY, run="now").controls_from is None


def _with(**changes: object) -> Callable[[dict[str, object]], dict[str, object]]:
    """Returns a change of the controls in a file, with a digest that fits."""

    def change(stored: dict[str, object]) -> dict[str, object]:
        controls = stored["controls"]
        assert isinstance(controls, dict)
        controls = controls | changes
        return stored | {"controls": controls, "digest": digest_of(controls)}

    return change


def _with_array(array: dict[str, object]) -> Callable[[dict[str, object]], dict[str, object]]:
    return _with(floor={"parts": {"nll": [dict.fromkeys(("index_R", "hi_R", "lo_R"), array)]}})


HOSTILE: dict[str, Callable[[dict[str, object]], object]] = {
    "edited": lambda stored: stored | {"controls": {}},
    "another key": lambda stored: stored | {"key": "0" * 64},
    "more keys": lambda stored: stored | {"more": 1},
    "no run": lambda stored: stored | {"run": None},
    "a list": lambda stored: [stored],
    "no floor": _with(floor=None),
    "a text for a number": _with(identity_probes="12"),
    "a truth value for a number": _with(identity_probes=True),
    "another field": _with(extra=1),
    "biases": _with(floor_details={"tokens": {"parts": []}, "routing": {"bias_by_layer": {"1": [1.0]}}}),
    "no base64": _with_array({"shape": [1], "data": "?"}),
    "too short": _with_array({"shape": [9], "data": ""}),
    "bad shape": _with_array({"shape": [-1], "data": ""}),
    "no such key": _with(floor_sums={"num_experts": 2, "routing": {}, "hidden": {"one": {"signal": 1, "error": 0}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_does_not_fit_is_as_good_as_none(name: str, now: Measurements, tmp_path: Path) -> None:
    store_controls(tmp_path, KEY, now, run="then")
    path = tmp_path / f"{KEY.digest()}.json"
    path.write_text(json.dumps(HOSTILE[name](json.loads(path.read_bytes()))))
    assert load_controls(tmp_path, KEY) is None


def test_files_that_are_no_json_are_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY.digest()}.json"
    for data in (b"", b"{", b"\xff", b"[" * 200_000, b"null", b"NaN"):
        path.write_bytes(data)
        assert load_controls(tmp_path, KEY) is None
    path.unlink()
    path.mkdir()
    assert load_controls(tmp_path, KEY) is None


def test_a_folder_that_cannot_be_written_costs_only_the_cache(now: Measurements, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not store_controls(tmp_path / "file", KEY, now, run="now")
    assert measure_with_kept(Pass(now), tmp_path / "file", KEY, run="now").controls_from is None


def test_what_has_no_stored_form_is_refused() -> None:
    with pytest.raises(ArchiveError, match="complex has no stored form"):
        freeze([1j])
    with pytest.raises(ArchiveError, match="an array of bool"):
        freeze(np.array([True]))
    with pytest.raises(ArchiveError, match="is no"):
        thaw(int, 1.5)
