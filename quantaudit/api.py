"""The facade: what the command line and Python users call. Inputs are checked here, before torch is imported."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from quantaudit import reporting
from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.index import read_index
from quantaudit.checkpoint.layout import check_layout
from quantaudit.checkpoint.precision import PrecisionMap, PrecisionRow, inspect_checkpoint
from quantaudit.core.contract import Contract
from quantaudit.core.cores import free_cores
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.evaluation.previous import note_earlier_audits
from quantaudit.evaluation.subset import choose_probes
from quantaudit.model.config import ModelConfig
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.probes import tokenizer
from quantaudit.registered import ListEntry, describe, list_entries, open_probes
from quantaudit.reporting.diff import diff
from quantaudit.reporting.single import write_report

if TYPE_CHECKING:
    from quantaudit.evaluation.decidable import ContractCheck, Detectable, GateReach
    from quantaudit.identity.compare_paths import compare
    from quantaudit.identity.fingerprint_path import fingerprint
    from quantaudit.identity.identify_paths import identify
    from quantaudit.verbs.certify import certify, check_certificate
    from quantaudit.verbs.contract import check_contract
    from quantaudit.verbs.judge import judge
    from quantaudit.verbs.recipe import run_recipe
    from quantaudit.verbs.simulate import simulate_rl
    from quantaudit.verbs.simulate_qat import simulate_qat

__all__ = [
    "ContractCheck",
    "Detectable",
    "GateReach",
    "ListEntry",
    "PrecisionMap",
    "PrecisionRow",
    "audit",
    "certify",
    "check_certificate",
    "check_checkpoint",
    "check_contract",
    "check_output",
    "compare",
    "describe",
    "diff",
    "fingerprint",
    "free_cores",
    "identify",
    "inspect",
    "judge",
    "list_entries",
    "note_earlier_audits",
    "open_probes",
    "render",
    "run_recipe",
    "save",
    "simulate_qat",
    "simulate_rl",
]

# What needs more libraries than an audit's inputs do is imported when it is first asked for.
_HOMES = {
    "ContractCheck": "quantaudit.evaluation.decidable",
    "Detectable": "quantaudit.evaluation.decidable",
    "GateReach": "quantaudit.evaluation.decidable",
    "certify": "quantaudit.verbs.certify",
    "check_certificate": "quantaudit.verbs.certify",
    "check_contract": "quantaudit.verbs.contract",
    "compare": "quantaudit.identity.compare_paths",
    "fingerprint": "quantaudit.identity.fingerprint_path",
    "identify": "quantaudit.identity.identify_paths",
    "judge": "quantaudit.verbs.judge",
    "run_recipe": "quantaudit.verbs.recipe",
    "simulate_qat": "quantaudit.verbs.simulate_qat",
    "simulate_rl": "quantaudit.verbs.simulate",
}

DEFAULT_RECIPE = "k3-w4a8"
DEFAULT_CONTRACT = "default"
DEFAULT_PROBES = "world/audit"

Progress = Callable[[str, int, int], None]

_LARGEST_TOKEN = max(tokenizer.BOS, tokenizer.EOS, tokenizer.PAD)


def __getattr__(name: str) -> object:
    """Imports a verb the first time it is asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def audit(
    hi: str | Path | None = None,
    *,
    lo: str | Path | None = None,
    recipe: str | Path | None = None,
    contract: str | Path = DEFAULT_CONTRACT,
    probes: str = DEFAULT_PROBES,
    device: str = "auto",
    threads: int | None = None,
    batch_size: int = 96,
    show_restricted: bool = False,
    controls_folder: str | Path | None = None,
    stop_early: bool = False,
    progress: Progress | None = None,
) -> AuditReport:
    """Audits a deployment against its reference.

    Args:
        hi: Checkpoint folder of the reference; the embedded model when `None`.
        lo: Checkpoint folder of the deployment; made from hi by the recipe when `None`.
        recipe: Bundled name or TOML file; `k3-w4a8` when neither lo nor recipe is given.
        contract: Bundled name or TOML file.
        probes: Probe set: "world/audit" or "world/select".
        device: "auto", "cpu" or "cuda".
        threads: CPU threads; the free cores when `None`.
        batch_size: Probes that share a forward.
        show_restricted: Whether the report holds the text of restricted probes.
        controls_folder: Where controls are kept, to take over those of a run with equal digests; nowhere when `None`.
        stop_early: Whether gates look on the way, and one that rejects ends the pass; not with `controls_folder`.
        progress: Told (stage, done, total).

    Returns:
        The report; its `verdict` is the answer.

    Raises:
        InputError: If an input is wrong: nothing has been run then.
        NotMeasuredError: If there was nothing to measure.
    """
    _check_settings(device, threads, batch_size, controls_folder, stop_early=stop_early)
    inputs = _check_inputs(hi, lo, recipe, contract, probes)
    return _carry_out(
        inputs,
        device=device,
        threads=threads or free_cores(),
        batch_size=batch_size,
        show_restricted=show_restricted,
        controls_folder=None if controls_folder is None else Path(controls_folder),
        stop_early=stop_early,
        progress=progress or _silent,
    )


def inspect(path: str | Path | None = None) -> PrecisionMap:
    """Returns which experts of a checkpoint really are stored in low precision, from the headers alone.

    Args:
        path: Checkpoint folder; the embedded model when `None`.
    """
    return inspect_checkpoint(embedded_model_folder() if path is None else Path(path))


def render(report: AuditReport, path: str | Path) -> None:
    """Writes a report in the format of the path's ending: .json, .md, .html, .xml (JUnit) or .sarif.

    Raises:
        InputError: If the ending is another, or nothing can be written there.
    """
    try:
        write_report(report, Path(path))
    except OSError as error:
        raise _unwritable(Path(path), error) from error


def save(report: AuditReport, folder: str | Path, formats: Iterable[str]) -> dict[str, Path]:
    """Writes `report.json` and views of it into a folder, which is made if needed.

    Args:
        report: The report.
        folder: Where to.
        formats: "md", "html", "junit", "sarif"; the JSON is always written.

    Returns:
        The main file of every format.

    Raises:
        InputError: If a format is unknown, or nothing can be written there.
    """
    try:
        return reporting.write_reports(report, Path(folder), formats)
    except OSError as error:
        raise _unwritable(Path(folder), error) from error


def check_output(folder: str | Path) -> None:
    """Checks that a folder can be written to, or made, before an audit is spent on it; leaves no trace.

    Raises:
        InputError: Otherwise.
    """
    path = Path(folder)
    try:
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(20, f"{nearest} is a file")
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"the output {path} cannot be written: {error.strerror or type(error).__name__}",
        expected="a folder that can be written to, or made",
        fix="name another with -o",
    )


def check_checkpoint(folder: Path) -> ModelConfig:
    """Checks configuration, headers, and both against each other, without torch; returns the sizes.

    Raises:
        InputError: If the folder is no checkpoint this stack can run, or cannot read the built-in probes.
    """
    index = read_index(folder)
    config = read_config(folder).model
    check_layout(index, config)
    if config.vocab_size <= _LARGEST_TOKEN:
        raise InputError(
            f"{folder} has a vocabulary of {config.vocab_size} tokens",
            expected=f"at least {_LARGEST_TOKEN + 1}: the built-in probes are bytes and special tokens",
            fix="audit a model that reads bytes",
        )
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What was given, read and checked."""

    hi: Path
    hi_source: str
    lo: Path | None
    lo_source: str | None
    recipe: Recipe | None
    contract: Contract
    probes: ProbeSet
    command: str


def _check_inputs(
    hi: str | Path | None, lo: str | Path | None, recipe: str | Path | None, contract: str | Path, probes: str
) -> _Inputs:
    """Reads and checks everything that needs no torch."""
    if lo is not None and recipe is not None:
        raise InputError(f"both lo ({lo}) and recipe ({recipe})", expected="one of them", fix="drop --lo or --recipe")
    chosen = load_recipe(recipe or DEFAULT_RECIPE) if lo is None else None
    if chosen is not None:
        _check_schemes(chosen)
    agreed = load_contract(contract)
    hi_folder, lo_folder = embedded_model_folder() if hi is None else Path(hi), None if lo is None else Path(lo)
    _check_sides(hi_folder, lo_folder)
    return _Inputs(
        hi=hi_folder,
        hi_source="embedded model" if hi is None else _source(hi_folder),
        lo=lo_folder,
        lo_source=None if lo_folder is None else _source(lo_folder),
        recipe=chosen,
        contract=agreed,
        probes=choose_probes(open_probes(probes), agreed),
        command=_command(hi, lo, recipe, contract, probes),
    )


def _carry_out(
    inputs: _Inputs,
    *,
    device: str,
    threads: int,
    batch_size: int,
    show_restricted: bool,
    controls_folder: Path | None,
    stop_early: bool,
    progress: Progress,
) -> AuditReport:
    progress("start", 0, 1)
    # The only import of the half that needs torch: by now every input has been read.
    from quantaudit.composition import Order, Settings, carry_out, open_checkpoint

    progress("start", 1, 1)
    order = Order(
        hi=open_checkpoint(inputs.hi),
        hi_source=inputs.hi_source,
        lo=None if inputs.lo is None else open_checkpoint(inputs.lo),
        lo_source=inputs.lo_source,
        recipe=inputs.recipe,
        contract=inputs.contract,
        probes=inputs.probes,
        device=device,
        threads=threads,
        settings=Settings(
            batch_size=batch_size,
            show_restricted=show_restricted,
            controls_folder=controls_folder,
            stop_early=stop_early,
        ),
        command=inputs.command + (" --stop-early" if stop_early else ""),
    )
    return carry_out(order, progress)


def _check_sides(hi: Path, lo: Path | None) -> None:
    """Checks both sides, and that they are one architecture."""
    config = check_checkpoint(hi)
    if lo is None or (other := check_checkpoint(lo)) == config:
        return
    differing = [f.name for f in fields(ModelConfig) if getattr(config, f.name) != getattr(other, f.name)]
    first = differing[0]
    raise InputError(
        f"{lo} is another architecture than {hi}: {first} is {getattr(other, first)}, not {getattr(config, first)}"
        + (f", and {len(differing) - 1} more settings differ" if len(differing) > 1 else ""),
        expected="the same sizes and constants on both sides",
        fix="compare two checkpoints of one model",
    )


def _check_schemes(recipe: Recipe) -> None:
    for rule in recipe.rules:
        for name in filter(None, (rule.weight, rule.activation)):
            get_scheme(name)


def _source(folder: Path) -> str:
    return folder.resolve().name or str(folder)


def _check_settings(
    device: str, threads: int | None, batch_size: int, controls_folder: str | Path | None, *, stop_early: bool
) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {device!r}", expected="auto, cpu or cuda", fix="correct --device")
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads", expected="1 to 1024", fix="correct --threads")
    if not 1 <= batch_size <= 4096:
        raise InputError(f"a batch size of {batch_size}", expected="1 to 4096", fix="correct --batch-size")
    if stop_early and controls_folder is not None:
        raise InputError(
            "--stop-early with cached controls",
            expected="one of them: controls are those of the probes that are run, and a stop leaves some out",
            fix="drop --stop-early, or --controls cached",
        )


def _command(
    hi: str | Path | None, lo: str | Path | None, recipe: str | Path | None, contract: str | Path, probes: str
) -> str:
    words = ["quantaudit", "run"]
    if hi is not None:
        words.append(str(hi))
    if lo is not None:
        words += ["--lo", str(lo)]
    elif recipe is not None and str(recipe) != DEFAULT_RECIPE:
        words += ["--recipe", str(recipe)]
    if str(contract) != DEFAULT_CONTRACT:
        words += ["--contract", str(contract)]
    if probes != DEFAULT_PROBES:
        words += ["--probes", probes]
    return shlex.join(words)


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
