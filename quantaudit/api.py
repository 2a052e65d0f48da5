"""The facade: what the command line and Python users call. Inputs are checked here, before torch is imported."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import quantaudit
from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.index import read_index
from quantaudit.checkpoint.layout import check_layout
from quantaudit.checkpoint.precision import PrecisionMap, inspect_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe_file import contract_names, load_contract, load_recipe, recipe_names
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, to_strict
from quantaudit.numerics.catalogue import get_scheme, scheme_names
from quantaudit.probes.world import default_probes
from quantaudit.reporting.single import write_report

DEFAULT_RECIPE = "k3-w4a8"
DEFAULT_CONTRACT = "default"
DEFAULT_PROBES = "world/audit"

PROBE_SETS = {"world/audit": Split.AUDIT, "world/select": Split.SELECT}

Progress = Callable[[str, int, int], None]


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
    if lo is not None and recipe is not None:
        raise InputError(
            f"both lo ({lo}) and recipe ({recipe})", expected="one of them", fix="drop --lo or --recipe"
        )
    chosen = load_recipe(str(recipe or DEFAULT_RECIPE)) if lo is None else None
    agreed = load_contract(str(contract))
    probe_set = open_probes(probes)
    hi_folder = embedded_model_folder() if hi is None else Path(hi)
    for folder in (hi_folder, *(() if lo is None else (Path(lo),))):
        check_checkpoint(folder)
    _check_settings(device, threads, batch_size)

    # The only import of the half that needs torch: by now every input has been read.
    from quantaudit.composition import Order, Settings, carry_out, open_checkpoint

    order = Order(
        hi=open_checkpoint(hi_folder),
        hi_source="embedded model" if hi is None else hi_folder.name,
        lo=None if lo is None else open_checkpoint(Path(lo)),
        lo_source=None if lo is None else Path(lo).name,
        recipe=chosen,
        contract=agreed,
        probes=probe_set,
        device=device,
        threads=threads or free_cores(),
        settings=Settings(batch_size=batch_size, show_restricted=show_restricted),
        command=_command(hi, lo, recipe, contract, probes),
    )
    return carry_out(order, progress or _silent)


def inspect(path: str | Path | None = None) -> PrecisionMap:
    """Returns which experts of a checkpoint really are stored in low precision, from the headers alone.

    Args:
        path: Checkpoint folder; the embedded model when `None`.
    """
    return inspect_checkpoint(embedded_model_folder() if path is None else Path(path))


def render(report: AuditReport, path: str | Path) -> None:
    """Writes a report in the format of the path's ending: .json, .md or .html.

    Raises:
        InputError: If the ending is another.
    """
    write_report(report, Path(path))


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
    match kind:
        case "schemes":
            return tuple(_entry(n, get_scheme(n).source) for n in scheme_names())
        case "recipes":
            return tuple(_entry(n, load_recipe(n).description) for n in recipe_names())
        case "contracts":
            return tuple(_entry(n, load_contract(n).description) for n in contract_names())
        case "observers":
            from quantaudit.composition import describe_observers

            return tuple(_entry(name, text) for name, text in describe_observers().items())
        case "probes":
            return tuple(_entry(name, "closed world, generated") for name in PROBE_SETS)
    kinds = "schemes, recipes, contracts, observers or probes"
    raise InputError(f"the kind {kind!r}", expected=kinds, fix="correct the word")


def describe(kind: str, name: str) -> str:
    """Returns the JSON of one scheme, recipe or contract, its digests first.

    Raises:
        InputError: If there is no such kind or name.
    """
    match kind:
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


def check_checkpoint(folder: Path) -> None:
    """Checks configuration, headers, and both against each other, without torch.

    Raises:
        InputError: If the folder is no checkpoint this stack can run.
    """
    index = read_index(folder)
    check_layout(index, read_config(folder).model)


def free_cores() -> int:
    """Returns the cores this process may use that are idle now, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    busy = round(os.getloadavg()[0])
    return max(1, allowed - busy)


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
