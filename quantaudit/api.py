"""The facade: what the command line and Python users call. Inputs are checked here, before torch is imported."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import quantaudit
from quantaudit import reporting
from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.index import read_index
from quantaudit.checkpoint.layout import check_layout
from quantaudit.checkpoint.precision import PrecisionMap, PrecisionRow, inspect_checkpoint
from quantaudit.core.contract import Contract
from quantaudit.core.cores import free_cores
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_file import contract_names, load_contract, load_recipe, recipe_names
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, to_strict
from quantaudit.model.config import ModelConfig
from quantaudit.numerics.catalogue import get_scheme, scheme_names
from quantaudit.probes import tokenizer
from quantaudit.probes.world import DEFAULT_SIZES, FAMILIES, default_probes
from quantaudit.reporting.single import write_report

__all__ = [
    "ListEntry",
    "PrecisionMap",
    "PrecisionRow",
    "audit",
    "check_checkpoint",
    "check_output",
    "describe",
    "free_cores",
    "inspect",
    "list_entries",
    "open_probes",
    "render",
    "save",
]

DEFAULT_RECIPE = "k3-w4a8"
DEFAULT_CONTRACT = "default"
DEFAULT_PROBES = "world/audit"

PROBE_SETS = {"world/audit": Split.AUDIT, "world/select": Split.SELECT}

Progress = Callable[[str, int, int], None]

_LARGEST_TOKEN = max(tokenizer.BOS, tokenizer.EOS, tokenizer.PAD)


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
        progress: Told (stage, done, total).

    Returns:
        The report; its `verdict` is the answer.

    Raises:
        InputError: If an input is wrong: nothing has been run then.
        NotMeasuredError: If there was nothing to measure.
    """
    _check_settings(device, threads, batch_size)
    inputs = _check_inputs(hi, lo, recipe, contract, probes)
    return _carry_out(
        inputs,
        device=device,
        threads=threads or free_cores(),
        batch_size=batch_size,
        show_restricted=show_restricted,
        progress=progress or _silent,
    )


def inspect(path: str | Path | None = None) -> PrecisionMap:
    """Returns which experts of a checkpoint really are stored in low precision, from the headers alone.

    Args:
        path: Checkpoint folder; the embedded model when `None`.
    """
    return inspect_checkpoint(embedded_model_folder() if path is None else Path(path))


def render(report: AuditReport, path: str | Path) -> None:
    """Writes a report in the format of the path's ending: .json, .md or .html.

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
        formats: "md", "html"; the JSON is always written.

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


class ListEntry(Frozen):
    """One registered thing."""

    name: str
    origin: str
    description: str


def list_entries(kind: str) -> tuple[ListEntry, ...]:
    """Returns the registry contents of one kind.

    Raises:
        InputError: If there is no such kind.
    """
    match _singular(kind):
        case "scheme":
            return tuple(_entry(n, get_scheme(n).source) for n in scheme_names())
        case "recipe":
            return tuple(_entry(n, load_recipe(n).description) for n in recipe_names())
        case "contract":
            return tuple(_entry(n, load_contract(n).description) for n in contract_names())
        case "observer":
            from quantaudit.composition import describe_observers

            return tuple(_entry(name, text) for name, text in describe_observers().items())
        case "probe":
            return tuple(_entry(name, _describe_probes(split)) for name, split in PROBE_SETS.items())
    kinds = "schemes, recipes, contracts, observers or probes"
    raise InputError(f"the kind {kind!r}", expected=kinds, fix="correct the word")


def describe(kind: str, name: str) -> str:
    """Returns the JSON of one scheme, recipe or contract, its digests first.

    Raises:
        InputError: If there is no such kind or name.
    """
    match _singular(kind):
        case "scheme":
            scheme = get_scheme(name)
            digests = {"arithmetic_digest": scheme.arithmetic_digest, "encoding_digest": scheme.encoding_digest}
            return _with_digests(scheme, digests)
        case "recipe":
            recipe = load_recipe(name)
            return _with_digests(recipe, {"digest": recipe.digest()})
        case "contract":
            contract = load_contract(name)
            return _with_digests(contract, {"digest": contract.digest()})
    raise InputError(f"the kind {kind!r}", expected="scheme, recipe or contract", fix="correct the word")


def _singular(kind: str) -> str:
    """Returns the kind in the singular: `list recipe` and `show recipes` say clearly enough what is meant."""
    return kind.removesuffix("s")


def _describe_probes(split: Split) -> str:
    return (
        f"the built-in closed world, {split.value} split: {sum(DEFAULT_SIZES.values()):,} probes of "
        f"{len(FAMILIES)} families"
    )


def _entry(name: str, description: str) -> ListEntry:
    return ListEntry(name=name, origin=f"quantaudit {quantaudit.__version__}", description=description)


def _with_digests(value: Frozen, digests: dict[str, str]) -> str:
    return json.dumps(to_strict({**digests, **value.model_dump(mode="json")}), indent=1) + "\n"


def open_probes(name: str) -> ProbeSet:
    """Returns a probe set by name.

    Raises:
        InputError: If there is none.
    """
    if name not in PROBE_SETS:
        raise InputError(f"the probe set {name!r}", expected=" or ".join(PROBE_SETS), fix="correct the name")
    return default_probes(split=PROBE_SETS[name])


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
        probes=open_probes(probes),
        command=_command(hi, lo, recipe, contract, probes),
    )


def _carry_out(
    inputs: _Inputs, *, device: str, threads: int, batch_size: int, show_restricted: bool, progress: Progress
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
        settings=Settings(batch_size=batch_size, show_restricted=show_restricted),
        command=inputs.command,
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


def _check_settings(device: str, threads: int | None, batch_size: int) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {device!r}", expected="auto, cpu or cuda", fix="correct --device")
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads", expected="1 to 1024", fix="correct --threads")
    if not 1 <= batch_size <= 4096:
        raise InputError(f"a batch size of {batch_size}", expected="1 to 4096", fix="correct --batch-size")


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
