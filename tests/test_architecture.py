"""The project keeps the rules of `house_rules.py`, each rule finds what it is for, and starting up stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quantaudit
from tests.house_rules import (
    MAY_IMPORT,
    ROOT,
    RULES,
    Rule,
    catches_what_it_knows,
    has_no_cycles,
    hides_no_imports,
    imports_by_statement,
    imports_what_is_declared,
    is_ascii,
    keeps_files_small,
    keeps_functions_small,
    keeps_libraries_out,
    names_files_by_idea,
    opens_with_docstring,
    parse,
    project,
    respects_layers,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    assert rule(project()) == []


PLANTED: list[tuple[Rule, dict[str, str]]] = [
    (respects_layers, {"model/a.py": "from quantaudit.numerics import quantize"}),
    (respects_layers, {"model/a.py": "from quantaudit import numerics", "numerics/__init__.py": ""}),
    (respects_layers, {"model/a.py": "from ..numerics.scales import x"}),
    (respects_layers, {"model/a.py": "from quantaudit import fake_quantize"}),
    (respects_layers, {"numerics/a.py": "import quantaudit.stats.clustered"}),
    (respects_layers, {"core/a.py": "def f():\n    from quantaudit.api import audit"}),
    (respects_layers, {"stats/a.py": "if TYPE_CHECKING:\n    from quantaudit.probes.world import World"}),
    (respects_layers, {"evaluation/a.py": "from quantaudit.engines.native import Engine"}),
    (respects_layers, {"cli/a.py": "from quantaudit.numerics import get_scheme"}),
    (respects_layers, {"extras/a.py": ""}),
    (hides_no_imports, {"stats/a.py": "def f():\n    import math"}),
    (hides_no_imports, {"api.py": "def f():\n    if True:\n        from quantaudit.core.recipe import Recipe"}),
    (hides_no_imports, {"reporting/a.py": "class A:\n    def f(self):\n        import altair"}),
    (hides_no_imports, {"stats/a.py": "def f():\n    import transformers"}),
    (imports_by_statement, {"model/a.py": "import importlib\nimportlib.import_module('torch')"}),
    (keeps_libraries_out, {"core/a.py": "import torch"}),
    (keeps_libraries_out, {"core/a.py": "try:\n    import pandas\nexcept ImportError:\n    pass"}),
    (keeps_libraries_out, {"reporting/a.py": "from torch import Tensor"}),
    (keeps_libraries_out, {"hooks/a.py": "import numpy"}),
    (imports_what_is_declared, {"stats/a.py": "import sklearn"}),
    (has_no_cycles, {"model/a.py": "from quantaudit.model import b", "model/b.py": "import quantaudit.model.a"}),
    (has_no_cycles, {"stats/__init__.py": "import quantaudit.stats.a", "stats/a.py": "from quantaudit.stats import x"}),
    (keeps_files_small, {"api.py": "\n" * 401}),
    (keeps_functions_small, {"api.py": "def f():\n" + "    pass\n" * 50}),
    (names_files_by_idea, {"core/utils.py": ""}),
    (names_files_by_idea, {"misc/a.py": ""}),
    (is_ascii, {"api.py": "'\u00e9'"}),
    (opens_with_docstring, {"core/__init__.py": "import math"}),
    (catches_what_it_knows, {"api.py": "try:\n    pass\nexcept (ValueError, Exception):\n    pass"}),
    (catches_what_it_knows, {"core/registry.py": "try:\n    pass\nexcept:\n    pass"}),
]


@pytest.mark.parametrize(("rule", "files"), PLANTED, ids=[f"{r.__name__}-{i}" for i, (r, _) in enumerate(PLANTED)])
def test_the_rule_finds_a_planted_fault(rule: Rule, files: dict[str, str]) -> None:
    assert rule(parse(files)) != []


ALLOWED: list[tuple[Rule, dict[str, str]]] = [
    (respects_layers, {"evaluation/a.py": "import quantaudit\nfrom quantaudit import __version__"}),
    (hides_no_imports, {"api.py": "def f():\n    from quantaudit.composition import carry_out"}),
    (hides_no_imports, {"cli/run.py": "def f():\n    from quantaudit.api import audit"}),
    (hides_no_imports, {"backends/gguf.py": "def f():\n    import gguf.quants"}),
    (keeps_libraries_out, {"core/a.py": "if TYPE_CHECKING:\n    from torch import Tensor"}),
    (keeps_functions_small, {"api.py": "def f():\n" + "    pass\n" * 49}),
    (has_no_cycles, {"model/a.py": "from quantaudit.model import b", "model/b.py": "", "model/__init__.py": ""}),
]


@pytest.mark.parametrize(("rule", "files"), ALLOWED, ids=[f"{r.__name__}-{i}" for i, (r, _) in enumerate(ALLOWED)])
def test_the_rule_lets_the_exception_pass(rule: Rule, files: dict[str, str]) -> None:
    assert rule(parse(files)) == []


def test_every_row_of_the_table_is_below_its_package() -> None:
    order = list(MAY_IMPORT)
    sideways = [(p, q) for p, row in MAY_IMPORT.items() for q in row if order.index(q) >= order.index(p)]
    assert sideways == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_code_beside_the_package_is_small_ascii_and_named_by_idea(folder: str) -> None:
    files = {p.relative_to(ROOT).as_posix(): p.read_text("utf-8") for p in sorted((ROOT / folder).rglob("*.py"))}
    source = parse(files)
    for rule in (keeps_files_small, keeps_functions_small, names_files_by_idea, is_ascii, opens_with_docstring):
        assert rule(source) == []


@pytest.mark.parametrize("module", ["quantaudit", "quantaudit.cli.main"])
def test_starting_up_imports_nothing_heavy(module: str) -> None:
    if module != "quantaudit" and module not in project():
        pytest.skip(f"{module} is not written yet")
    heavy = "{'torch', 'torchao', 'bitsandbytes', 'transformers', 'scipy', 'statsmodels', 'pandas', 'altair', 'jinja2'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names_exist_and_are_listed() -> None:
    assert dir(quantaudit) == sorted(quantaudit.__all__)
    if "quantaudit.api" not in project():
        pytest.skip("quantaudit.api is not written yet")
    for name in quantaudit.__all__:
        assert getattr(quantaudit, name) is not None
