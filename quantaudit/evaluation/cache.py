"""Controls that were measured before: hi against itself, through the lo path, and with planted faults.

They are a function of hi, the probes, the contract and all that determines the bits, and of nothing about lo; so the
next recipe on the same reference can take them over, and its report is the same to the last digit. They are kept under
a digest of all of that and of this package's source. What is read is checked against the run that takes it over: hi
has to give the very readings, probe by probe, that it gave then. Whatever does not fit is measured anew.

A kept file is trusted as far as a report is: whoever can write into the folder of the reports can forge both.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quantaudit.core.report import Environment
from quantaudit.core.serial import Json, canonical_bytes, digest_of, write_atomically
from quantaudit.evaluation.archive import ArchiveError, freeze, thaw
from quantaudit.evaluation.details import Details
from quantaudit.evaluation.measure import Controls, Measurements
from quantaudit.evaluation.table import Table
from quantaudit.observers.metric import Readings
from quantaudit.observers.sums import LayerSums

_FORMAT = 1
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlKey:
    """All that controls are a function of.

    Attributes:
        weights_digest: Of hi.
        probes_digest: Of the probes that are run.
        contract_digest: Of the contract, whose gates decide what faults are planted for.
        environment: What determines the bits.
    """

    weights_digest: str
    probes_digest: str
    contract_digest: str
    environment: Environment

    def digest(self) -> str:
        """Returns what the controls are kept under."""
        whole = {
            "format": _FORMAT,
            "source": source_digest(),
            "weights": self.weights_digest,
            "probes": self.probes_digest,
            "contract": self.contract_digest,
            "environment": self.environment.model_dump(mode="json"),
        }
        return digest_of(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Controls of an earlier run.

    Attributes:
        run: When that run was started.
        controls: What it measured.
    """

    run: str
    controls: Controls


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Returns the sha256 of every source file of the package: other code may measure other numbers."""
    root = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


class Measured(NamedTuple):
    """Measurements, and when the run was started whose controls are in them; `None` for this run."""

    measurements: Measurements
    controls_from: str | None


def measure_with_kept(
    measure: Callable[[Controls | None], Measurements], folder: Path | None, key: ControlKey, *, run: str
) -> Measured:
    """Measures with the controls that are kept under a key; where none fit, measures all and keeps them.

    Args:
        measure: Runs the pass, taking controls over or not.
        folder: Where controls are kept; without one, all are measured.
        key: What they are a function of.
        run: When this run was started.
    """
    if folder is None:
        return Measured(measure(None), None)
    kept = load_controls(folder, key)
    if kept is not None:
        measured = measure(kept.controls)
        if is_of_this_run(kept.controls, measured):
            return Measured(measured, kept.run)
    measured = measure(None)
    store_controls(folder, key, measured, run=run)
    return Measured(measured, None)


def load_controls(folder: Path, key: ControlKey) -> Kept | None:
    """Returns the controls kept under a key, or `None` if there are none that can be read."""
    data = _read(folder / f"{key.digest()}.json")
    if data is None:
        return None
    try:
        stored: Json = json.loads(data)
        if not isinstance(stored, dict) or set(stored) != {"kind", "key", "run", "digest", "controls"}:
            return None
        run, content = stored["run"], stored["controls"]
        if stored["key"] != key.digest() or stored["digest"] != digest_of(content) or not isinstance(run, str):
            return None
        return Kept(run=run, controls=thaw(Controls, content))
    except (ValueError, TypeError, RecursionError):  # an ArchiveError is a ValueError
        return None


def store_controls(folder: Path, key: ControlKey, measured: Measurements, *, run: str) -> bool:
    """Keeps the controls of a run; tells whether that was possible.

    Args:
        folder: Where to.
        key: What they are a function of.
        measured: What the run measured.
        run: When it was started.
    """
    try:
        content = freeze(without_biases(controls_of(measured)))
        whole = {"kind": "controls", "key": key.digest(), "run": run, "digest": digest_of(content), "controls": content}
        write_atomically(folder / f"{key.digest()}.json", canonical_bytes(whole))
    except (OSError, ArchiveError):  # a report without kept controls is as good
        return False
    return True


def controls_of(measured: Measurements) -> Controls:
    """Returns the part of the measurements that says nothing about lo."""
    return Controls(**{field.name: getattr(measured, field.name) for field in fields(Controls)})


def without_biases(controls: Controls) -> Controls:
    """Returns the controls without the router's biases, which are hi's and needed for adding up only."""
    routing = replace(controls.floor_details.routing, bias_by_layer={})
    return replace(controls, floor_details=replace(controls.floor_details, routing=routing))


def is_of_this_run(controls: Controls, measured: Measurements) -> bool:
    """Tells whether hi was then what it is in this run: the same readings, tokens, loads and norms, exactly."""
    same_tables = set(controls.floor.parts) == set(measured.lo.parts) and all(
        _has_same_hi(table, measured.lo) for table in (controls.floor, *controls.faults.values())
    )
    return (
        same_tables
        and set(controls.faults) == set(measured.faults)
        and _has_same_tokens(controls.floor_details, measured.details)
        and _has_same_layers(controls.floor_sums, measured.sums)
    )


def _has_same_hi(then: Table, now: Table) -> bool:
    """Tells whether hi's side of every observer that was read then is what it is now."""
    if not set(then.parts) <= set(now.parts) or not all(p.lo_R.shape == p.hi_R.shape for p in _parts(then)):
        return False
    pairs = [(then.readings(name), now.readings(name)) for name in then.parts]
    return all(np.array_equal(a.index_R, b.index_R) and np.array_equal(a.hi_R, b.hi_R) for a, b in pairs)


def _parts(table: Table) -> list[Readings]:
    return [part for parts in table.parts.values() for part in parts]


def _has_same_tokens(then: Details, now: Details) -> bool:
    """Tells whether the tokens are the same, their numbers complete, and the routing of as many layers."""
    a, b = then.tokens.join(), now.tokens.join()
    if a is None or b is None:
        return a is b
    columns = [getattr(a.view, field.name) for field in fields(a.view)]
    return (
        np.array_equal(a.probe_M, b.probe_M)
        and np.array_equal(a.position_M, b.position_M)
        and all(column.shape == a.probe_M.shape for column in columns)
        and np.array_equal(a.view.hi_p_M, b.view.hi_p_M)
        and set(then.routing.layers) == set(now.routing.layers)
    )


def _has_same_layers(then: LayerSums, now: LayerSums) -> bool:
    """Tells whether hi's expert loads and squared norms are what they are now, layer by layer."""
    return (
        set(then.routing) == set(now.routing)
        and all(np.array_equal(sums.hi_load_E, now.routing[layer].hi_load_E) for layer, sums in then.routing.items())
        and {layer: sums.signal for layer, sums in then.hidden.items()}
        == {layer: sums.signal for layer, sums in now.hidden.items()}
    )


def _read(path: Path) -> bytes | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        return path.read_bytes()
    except OSError:
        return None
