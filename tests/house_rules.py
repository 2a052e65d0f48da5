"""The layer table, the size ceilings and the bans of the house, read off the source with `ast`.

Every rule is a function from a set of modules to a list of faults, so that one test can show it silent on the project
and another show it speak up on a planted fault.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What each package may import of the others. `quantaudit/__init__.py` is not in it: it imports nothing but by name.
BELOW_4 = {"core", "numerics", "model", "stats", "probes", "observers", "reporting", "hooks", "backends", "checkpoint"}
BELOW_6 = BELOW_4 | {"identity", "engines", "evaluation"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "numerics": {"core"},
    "model": {"core"},
    "stats": {"core"},
    "probes": {"core"},
    "observers": {"core"},
    "reporting": {"core"},
    "hooks": {"core"},
    "backends": {"core", "numerics"},
    "checkpoint": {"core", "numerics", "model", "backends"},
    "identity": {"core", "numerics", "backends", "checkpoint", "hooks"},
    "engines": {"core", "numerics", "model", "backends", "checkpoint"},
    "evaluation": {"core", "stats", "probes", "observers", "checkpoint", "identity"},
    "training": BELOW_6,
    "testing": BELOW_6 | {"training"},
    "composition": BELOW_6 | {"training"},
    "registered": {"core", "numerics", "probes", "observers", "evaluation", "backends"},
    "verbs": BELOW_6 | {"training", "composition", "registered"},
    "api": BELOW_6 | {"training", "composition", "registered", "verbs"},
    "cli": {"api", "reporting", "core"},
}
LIBRARIES = {"core": {"numpy", "pydantic"}, "hooks": {"torch"}}  # closed lists; other packages take what is declared
NO_TORCH = {"core", "reporting", "cli"}

# Imports inside functions: a table for those who ask for one, torch once all inputs are checked or observers are
# listed, and optional libraries inside their own adapters.
LOCAL_IMPORTS = {
    ("core/report.py", "pandas"),
    ("api.py", "quantaudit.composition"),
    ("backends/bitsandbytes_backend.py", "quantaudit.backends.bitsandbytes_library"),
    ("backends/torchao_backend.py", "quantaudit.backends.torchao_library"),
    ("backends/torchao_qat.py", "quantaudit.backends.torchao_fake"),
    ("registered.py", "quantaudit.backends.listing"),
    ("registered.py", "quantaudit.evaluation.layers"),
    ("registered.py", "quantaudit.observers.registry"),
}
ADAPTERS = {"backends", "engines", "hooks", "checkpoint", "training"}
OPTIONAL = {"transformers", "compressed_tensors", "gguf", "huggingface_hub", "modelopt", "trl"}

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_LINE = 400, 50, 120
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "types"}
CATCHES_EVERYTHING = {"core/registry.py", "cli/main.py"}  # the plug-in loader, and the last line of the command
# Plug-ins, and lazy public names.
IMPORTS_BY_STRING = {
    "core/registry.py",
    "__init__.py",
    "api.py",
    "backends/__init__.py",
    "backends/registry.py",
    "hooks/__init__.py",
    "numerics/__init__.py",
    "reporting/__init__.py",
}

MODULE_NAMES = {"nvidia-modelopt": "modelopt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module: absolute name, whether it stands in a function, whether only the type checker sees it."""

    name: str
    line: int
    is_local: bool
    is_for_types: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file below quantaudit/."""

    path: str  # relative to quantaudit/
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """First folder, or the file's stem at the top."""
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def name(self) -> str:
        """Dotted name."""
        return "quantaudit." + self.path.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")


Source = Mapping[str, Module]
Rule = Callable[[Source], list[str]]


def parse(files: Mapping[str, str]) -> Source:
    """Parses file texts keyed by their path below quantaudit/."""
    modules = (Module(path=path, text=text, tree=ast.parse(text)) for path, text in files.items())
    return {module.name.rstrip("."): module for module in modules}


@lru_cache(maxsize=1)
def project() -> Source:
    """Parses the project."""
    folder = ROOT / "quantaudit"
    return parse({p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in sorted(folder.rglob("*.py"))})


def imports_of(module: Module, source: Source) -> list[Import]:
    """Lists the imports of a module; `from package import submodule` names the submodule."""
    return [
        Import(name=name, line=node.lineno, is_local=is_local, is_for_types=is_for_types)
        for node, is_local, is_for_types in walk_imports(module.tree, is_local=False, is_for_types=False)
        for name in names_of(node, module, source)
    ]


def walk_imports(
    node: ast.AST, *, is_local: bool, is_for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Yields import statements with the context they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_local, is_for_types
            continue
        in_function = is_local or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = is_for_types or (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"))
        yield from walk_imports(child, is_local=in_function, is_for_types=guarded)


def names_of(node: ast.Import | ast.ImportFrom, module: Module, source: Source) -> list[str]:
    """Returns the absolute names of the modules a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        package = module.name.rstrip(".").split(".")
        depth = len(package) - node.level + (1 if module.path.endswith("__init__.py") else 0)
        base = ".".join([*package[:depth], *([node.module] if node.module else [])])
    else:
        base = node.module or ""
    names = [f"{base}.{alias.name}" for alias in node.names]
    # A public name of quantaudit counts as a module of its own: taking it from the front page skips the layers.
    is_front_page = base == "quantaudit"
    return [n if n in source or (is_front_page and n != "quantaudit.__version__") else base for n in names]


def at_run_time(module: Module, source: Source) -> list[Import]:
    """Lists the imports that happen, local ones included."""
    return [found for found in imports_of(module, source) if not found.is_for_types]


def respects_layers(source: Source) -> list[str]:
    """Every package imports only what its row of the table says, type checking included."""
    faults = []
    for module in source.values():
        if module.path == "__init__.py":
            continue
        allowed = MAY_IMPORT.get(module.package)
        if allowed is None:
            faults.append(f"{module.path}: {module.package!r} is not in the table")
            continue
        for found in imports_of(module, source):
            parts = found.name.split(".")
            if parts[0] != "quantaudit" or len(parts) == 1 or parts[1] == module.package:
                continue
            if parts[1] not in allowed:
                faults.append(f"{module.path}:{found.line}: {module.package} imports {found.name}")
    return faults


def hides_no_imports(source: Source) -> list[str]:
    """No import stands in a function, but for the command line and optional libraries in their adapters."""
    return [
        f"{module.path}:{found.line}: {found.name} is imported inside a function"
        for module in source.values()
        for found in imports_of(module, source)
        if found.is_local and not _may_be_local(module, found.name)
    ]


def _may_be_local(module: Module, name: str) -> bool:
    root = name.split(".")[0]
    return (
        module.package == "cli"
        or not {(module.path, root), (module.path, name)}.isdisjoint(LOCAL_IMPORTS)
        or (module.package in ADAPTERS and root in OPTIONAL)
    )


def imports_by_statement(source: Source) -> list[str]:
    """Nothing is imported by a string, but by the registry and by packages whose public names are lazy."""
    return [
        f"{module.path}:{node.lineno}: imports by a string"
        for module in source.values()
        if module.path not in IMPORTS_BY_STRING
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}
    ]


def keeps_libraries_out(source: Source) -> list[str]:
    """Core needs numpy and pydantic, hooks torch, and reports are made without torch."""
    faults = []
    for module in source.values():
        for found in at_run_time(module, source):
            root = found.name.split(".")[0]
            if root in sys.stdlib_module_names or root == "quantaudit" or (module.path, root) in LOCAL_IMPORTS:
                continue
            closed = LIBRARIES.get(module.package)
            is_optional = module.package in ADAPTERS and root in OPTIONAL
            if (closed is not None and root not in closed and not is_optional) or (
                root == "torch" and module.package in NO_TORCH
            ):
                faults.append(f"{module.path}:{found.line}: {module.package} imports {root}")
    return faults


def imports_what_is_declared(source: Source) -> list[str]:
    """Every library that is imported is a dependency or in an extra."""
    known = sys.stdlib_module_names | declared_libraries() | {"quantaudit"}
    return [
        f"{module.path}:{found.line}: {found.name} is not declared in pyproject.toml"
        for module in source.values()
        for found in at_run_time(module, source)
        if found.name.split(".")[0] not in known
    ]


def declared_libraries() -> set[str]:
    """Import names of the dependencies and of all extras but `dev`."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for extra, lines in table["optional-dependencies"].items() if extra != "dev" for line in lines]
    names = [re.split(r"[<>=!~\[; ]", line)[0] for line in [*table["dependencies"], *extras]]
    return {MODULE_NAMES.get(name, name.replace("-", "_")) for name in names}


def has_no_cycles(source: Source) -> list[str]:
    """No module imports itself through others; local imports count."""
    edges = {name: [f.name for f in at_run_time(m, source) if f.name in source] for name, m in source.items()}
    finished: set[str] = set()
    faults: list[str] = []

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            faults.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in finished:
            for target in edges[name]:
                visit(target, (*trail, name))
            finished.add(name)

    for name in edges:
        visit(name, ())
    return faults


def keeps_files_small(source: Source) -> list[str]:
    """Files have at most 400 lines."""
    sizes = {module.path: module.text.count("\n") for module in source.values()}
    return [f"{path}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]


def keeps_functions_small(source: Source) -> list[str]:
    """Functions have at most 50 lines, docstring included."""
    return [
        f"{module.path}:{node.lineno}: {node.name} has {size} lines"
        for module in source.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def names_files_by_idea(source: Source) -> list[str]:
    """No file or folder has a name that says nothing."""
    return [module.path for module in source.values() if BANNED_NAMES & set(module.path.removesuffix(".py").split("/"))]


def is_ascii(source: Source) -> list[str]:
    """Code is ASCII."""
    return [module.path for module in source.values() if not module.text.isascii()]


def opens_with_docstring(source: Source) -> list[str]:
    """Every module and every package says its idea first."""
    return [module.path for module in source.values() if not ast.get_docstring(module.tree)]


def catches_what_it_knows(source: Source) -> list[str]:
    """Only the plug-in loader catches `Exception`; a bare `except` is nowhere."""
    return [
        f"{module.path}:{node.lineno}: catches everything"
        for module in source.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (_names(node.type, "Exception") and module.path not in CATCHES_EVERYTHING))
    ]


def _names(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


RULES: list[Rule] = [
    respects_layers,
    hides_no_imports,
    imports_by_statement,
    keeps_libraries_out,
    imports_what_is_declared,
    has_no_cycles,
    keeps_files_small,
    keeps_functions_small,
    names_files_by_idea,
    is_ascii,
    opens_with_docstring,
    catches_what_it_knows,
]
