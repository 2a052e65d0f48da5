"""An installed extension is found, listed with its version, and used; what is broken in it harms only who needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from quantaudit import api
from quantaudit.core.contract import Clause, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.probe_maker import adopt_probe_maker
from quantaudit.core.recipe_file import load_recipe
from quantaudit.evaluation.clauses import check_contract, decide_clauses
from quantaudit.numerics import fake_quantize, get_scheme, scheme_names
from quantaudit.numerics.catalogue import SCHEMES
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.registry import OBSERVERS, get_observer, observer_names, observers_for
from quantaudit.probes.world import default_probes
from tests.evaluation import synthetic

PACKAGE = Path(__file__).parent / "plugin_package"
ROOT = PACKAGE.parents[1]
ERROR = "ImportError: libdemo.so.2: cannot open shared object file"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the extension's wheel with the backend it names, and unpacks it as an installer does."""
    folder = tmp_path_factory.mktemp("extension")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
    subprocess.run(command, cwd=PACKAGE, capture_output=True, check=True)
    (built,) = (folder / "wheel").glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the extension visible to this process."""
    monkeypatch.syspath_prepend(str(site))


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with the extension installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_without_it_nothing_is_plugged_in() -> None:
    for names in (scheme_names(), observer_names(), tuple(e.name for e in api.list_entries("probes"))):
        assert not any(name.startswith("quantaudit-demo/") for name in names)


@pytest.mark.parametrize(("kind", "name"), [("schemes", "int4-g64"), ("observers", "surprise"), ("probes", "plurals")])
@pytest.mark.usefixtures("installed")
def test_what_it_brings_is_listed_last_with_its_origin_and_version(kind: str, name: str) -> None:
    *others, last = [entry for entry in api.list_entries(kind) if not entry.error]
    assert (
        last.name == f"quantaudit-demo/{name}" and last.origin == "quantaudit-demo 1.5" and len(last.description) > 10
    )
    assert all(entry.origin.startswith("quantaudit ") for entry in others)


@pytest.mark.usefixtures("installed")
def test_what_does_not_load_is_listed_with_its_error() -> None:
    (failed,) = [entry for entry in api.list_entries("schemes") if entry.error is not None]
    assert failed.name == "quantaudit-demo/broken"
    assert failed.error == ERROR and failed.description == f"does not load: {ERROR}"


@pytest.mark.usefixtures("installed")
def test_its_scheme_quantizes_under_its_registered_name() -> None:
    scheme = get_scheme("quantaudit-demo/int4-g64")
    assert scheme.name == "quantaudit-demo/int4-g64"
    x = torch.randn(4, 128)
    other = get_scheme("int4-g32-div7")
    assert not torch.equal(fake_quantize(x, scheme), fake_quantize(x, other))
    assert scheme.arithmetic_digest != other.arithmetic_digest
    assert scheme.model_copy(update={"name": "x"}).arithmetic_digest == scheme.arithmetic_digest


@pytest.mark.usefixtures("installed")
def test_its_observer_is_measured_where_a_contract_names_it_and_only_there() -> None:
    observer = get_observer("quantaudit-demo/surprise")
    assert observer.name == "quantaudit-demo/surprise" and observer.unit == "bits/token"
    assert observers_for(["nll", "contrast"]) == tuple(PROBE_OBSERVERS.values())
    assert observers_for(["nll", observer.name, observer.name]) == (*PROBE_OBSERVERS.values(), observer)
    with pytest.raises(InputError, match="did you mean quantaudit-demo/surprise"):
        observers_for(["quantaudit-demo/surprize"])


@pytest.mark.usefixtures("installed")
def test_its_probes_are_opened_by_name() -> None:
    probes = api.open_probes("quantaudit-demo/plurals")
    assert probes.name == "quantaudit-demo/plurals" and len(probes.probes) == 8
    with pytest.raises(InputError, match="did you mean quantaudit-demo/plurals"):
        api.open_probes("quantaudit-demo/plural")


@pytest.mark.usefixtures("installed")
def test_a_broken_entry_is_fatal_only_to_a_recipe_that_needs_it(tmp_path: Path) -> None:
    text = '[[rules]]\nmatch = "layers.*.experts.*"\nweight = "{}"\n'
    for name, fails in (("int4-g64", False), ("broken", True)):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'schema_version = 1\nname = "{name}"\n' + text.format(f"quantaudit-demo/{name}"))
        recipe = load_recipe(path)
        if fails:
            with pytest.raises(InputError, match="quantaudit-demo 1.5, which fails to load .ImportError: libdemo"):
                api._check_schemes(recipe)
        else:
            api._check_schemes(recipe)


@pytest.mark.parametrize("kind", ["schemes", "probes"])
def test_the_command_lists_it_without_torch(kind: str, site: Path) -> None:
    code = (
        "import sys; from quantaudit.cli.main import _run;"
        f"code = _run(['list', '{kind}', '--json']); print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    ended = run(site, "-c", code)
    assert ended.stderr.strip() == "0 False", ended.stderr
    names = [entry["name"] for entry in json.loads(ended.stdout)]
    assert any(name.startswith("quantaudit-demo/") for name in names)


def test_the_command_says_what_does_not_load(site: Path) -> None:
    ended = run(site, "-c", "from quantaudit.cli.main import main; main()", "list", "schemes")
    assert ended.returncode == 0
    listed = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    at = listed.index("from quantaudit-demo 1.5:")
    assert f"quantaudit-demo/broken does not load: {ERROR}" in listed[at:]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda: 5, "made as a int"),
        (lambda: _probes(split=Split.TRAIN), "of the training split"),
        (lambda: _probes(id="0" * 16), "not called by its digest"),
        (lambda: _probes(times=2), "a probe is there twice"),
    ],
)
def test_a_probe_set_that_is_not_sound_is_refused(value: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        adopt_probe_maker("a/b", value)()
    with pytest.raises(TypeError, match="a int, not a function"):
        adopt_probe_maker("a/b", 5)


def _probes(times: int = 1, **changes: object) -> ProbeSet:
    probe = default_probes(Split.SELECT, 1).probes[0].model_copy(update=changes)
    return ProbeSet(name="x", source="x", probes=(probe,) * times)


def test_a_scheme_and_an_observer_must_be_one() -> None:
    with pytest.raises(TypeError, match=r"a dict, not a quantaudit\.Scheme"):
        SCHEMES._adopt("a/b", {})
    with pytest.raises(TypeError, match=r"a float, not a quantaudit\.observers\.paired\.Observer"):
        OBSERVERS._adopt("a/b", 1.0)


@pytest.mark.usefixtures("installed")
def test_a_clause_on_its_observer_is_decided_like_any_other() -> None:
    bits = get_observer("quantaudit-demo/surprise")
    gate = Clause(
        name="surprise",
        stage=Stage.FIDELITY,
        observer=bits.name,
        margin=0.1,
        reason="Bits an answer token, by a plug-in.",
    )
    agreed = synthetic.contract(gate)
    hi = synthetic.good_values() | {bits.name: np.full(len(synthetic.PROBES.probes), 0.2)}
    for change, outcome in ((0.0, Outcome.PASS), (0.3, Outcome.FAIL)):
        noise = np.random.default_rng(3).normal(0, 0.01, len(hi[bits.name]))
        lo, soft = (hi | {bits.name: hi[bits.name] + noise + more} for more in (change, 0.3))
        tables = [synthetic.table_of(hi, side) for side in (lo, hi, soft)]
        for table in tables:
            table.plugged[bits.name] = bits.metric()
        found = synthetic.evidence(tables[0], floor=tables[1], planted={"soft": tables[2]}, agreed=agreed)
        (result,) = decide_clauses(agreed, found)
        assert result.decision.outcome is outcome and result.unit == "bits/token"
    check_contract(agreed, synthetic.PROBES)
    broken = gate.model_copy(update={"observer": "quantaudit-demo/surprize"})
    with pytest.raises(InputError, match="needs the observer 'quantaudit-demo/surprize'"):
        check_contract(synthetic.contract(broken), synthetic.PROBES)
