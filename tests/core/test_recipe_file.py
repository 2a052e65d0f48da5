"""Recipe and contract files: what is bundled parses, and each fault is named with its key and its cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantaudit.core.contract import Direction, Kind, Quotient, Stage
from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour
from quantaudit.core.recipe import ComputeDtype, Recipe, Rule
from quantaudit.core.recipe_file import (
    MAX_BYTES,
    contract_names,
    load_contract,
    load_recipe,
    recipe_names,
)
from quantaudit.core.resources import recipes_folder

ROUNDED = ("fp8-block", "identity", "int2", "int3-g32", "int4-g32", "k3-w4a16", "k3-w4a8", "nf4", "nvfp4")
REPAIRS = (
    *("fp8-block-rl", "int2-qad", "int3-qad", "k2-int4-qat", "k3-mxfp4-w4a16-qat", "k3-mxfp4-w4a8-qat"),
    *("mixed-precision-repair", "mxfp8-rl", "nvfp4-qad", "router-frozen", "safety-weighted-qad", "scale-learned"),
)
GPTQ = ("gptq-int3-g32", "gptq-int4-g32")
EXPERTS = [f"layers.3.experts.w{i}" for i in (1, 2, 3)]
OTHERS = ["layers.3.shared_experts.w1", "layers.3.attn.q", "layers.0.mlp.w1", "layers.3.router", "layers.3.experts.w4"]
GOOD_CLAUSE = '[[clauses]]\nname = "a"\nstage = "task"\nobserver = "accuracy"\n'

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file and returns its path."""

    def to_file(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def test_recipes_and_contracts_are_listed() -> None:
    assert set(recipe_names()) == set(ROUNDED + REPAIRS + GPTQ)
    assert recipe_names() == tuple(sorted(recipe_names()))
    assert contract_names() == ("default", "recorded", "recorded-answers", "rl-rollout", "smoke", "strict")


@pytest.mark.parametrize("name", recipe_names())
def test_a_bundled_recipe_has_its_name_and_quantizes_routed_experts_only(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    assert not recipe.requantize
    assert [module for module in EXPERTS + OTHERS if recipe.rule_for(module)] == ([] if name == "identity" else EXPERTS)


def test_the_repairs_train_and_the_others_round_to_nearest() -> None:
    assert [name for name in recipe_names() if load_recipe(name).repair is not None] == sorted(REPAIRS)
    assert [name for name in recipe_names() if load_recipe(name).gptq is not None] == sorted(GPTQ)
    assert [name for name in recipe_names() if load_recipe(name).rounds_to_nearest()] == sorted(ROUNDED)


def test_a_repair_rounds_under_the_rules_of_a_plain_recipe() -> None:
    pairs = {"k3-mxfp4-w4a8-qat": "k3-w4a8", "k3-mxfp4-w4a16-qat": "k3-w4a16", "nvfp4-qad": "nvfp4", "int2-qad": "int2"}
    pairs |= {"gptq-int3-g32": "int3-g32", "gptq-int4-g32": "int4-g32"}
    assert all(load_recipe(repair).rules == load_recipe(plain).rules for repair, plain in pairs.items())


def test_only_identity_changes_nothing() -> None:
    assert [name for name in recipe_names() if load_recipe(name).is_identity()] == ["identity"]


def test_the_k3_recipes_say_what_they_assume() -> None:
    full, weights_only = load_recipe("k3-w4a8"), load_recipe("k3-w4a16")
    assert full.notes[0] == weights_only.notes[0] == "Kimi K3's scale rule is not public; `even` assumed."
    assert any("MXFP8 element format" in note for note in full.notes)
    assert full.rules == (Rule(match="layers.*.experts.w[123]", weight="mxfp4-even", activation="mxfp8-e4m3-even"),)
    assert [rule.activation for rule in weights_only.rules] == [None]


def test_every_bundled_recipe_names_its_source() -> None:
    assert all((recipes_folder() / f"{name}.toml").read_text().startswith("# Source: ") for name in recipe_names())


def test_the_default_contract_is_the_one_that_was_fixed() -> None:
    contract = load_contract("default")
    table = {
        c.name: (c.stage, c.observer, c.behaviours, c.each_family, c.direction, c.margin)
        for c in contract.clauses
        if c.kind is Kind.GATE
    }
    answer, refuse, comply = Behaviour.ANSWER, Behaviour.REFUSE, Behaviour.COMPLY
    worse, both = Direction.WORSE, Direction.BOTH
    assert table == {
        "integrity": (Stage.INTEGRITY, "integrity", (), False, worse, None),
        "degeneracy": (Stage.DEGENERACY, "degeneracy", (), False, worse, None),
        "fidelity": (Stage.FIDELITY, "nll", (), False, worse, 0.02),
        "task": (Stage.TASK, "accuracy", (answer,), True, worse, 0.02),
        "margin": (Stage.TASK, "answer-margin", (answer,), True, worse, 0.25),
        "refusal": (Stage.SAFETY, "refusal-rate", (refuse,), False, both, 0.02),
        "over-refusal": (Stage.SAFETY, "refusal-rate", (comply,), False, both, 0.02),
        "contrast": (Stage.SAFETY, "refusal-contrast", (refuse, comply), False, both, 0.25),
    }
    assert {c.alpha for c in contract.clauses} == {0.05}
    assert (contract.min_probes, contract.min_clusters) == (300, 30)


def test_the_default_contract_gates_in_the_order_of_stages() -> None:
    order = list(Stage)
    gates = [order.index(c.stage) for c in load_contract("default").clauses if c.kind is Kind.GATE]
    assert gates == sorted(gates)


def test_only_routing_is_raised_among_alarms_and_every_clause_has_a_reason() -> None:
    clauses = load_contract("default").clauses
    alarms = [c for c in clauses if c.kind is Kind.ALARM]
    names = "kl-forward kl-reverse top-1 expert-set-agreement load-drift hidden-error weight-sqnr"
    assert [c.observer for c in alarms] == names.split()
    assert {c.name: c.margin for c in alarms if c.margin is not None} == {"expert-set-agreement": 0.1}
    assert all(c.reason for c in clauses if c.quotient is not Quotient.VALUES or c.margin is not None)


def test_a_recipe_file_is_read_by_path(write: Write) -> None:
    path = write(
        'name = "mine"\nrequantize = true\n[execution]\ndtype = "bfloat16"\n'
        '[[rules]]\nmatch = "*"\nweight = "nf4-b64"\n'
    )
    recipe = load_recipe(str(path))
    assert recipe == load_recipe(path)
    assert recipe.execution.dtype is ComputeDtype.BFLOAT16
    assert recipe.rules == (Rule(match="*", weight="nf4-b64"),)


def test_a_recipe_trains_or_compensates_but_not_both(write: Write) -> None:
    both = "[repair]\nsteps = 1\nlearning_rate = 1e-3\ncross_entropy = 1.0\nfamilies = {facts = 1.0}\n[gptq]\n"
    with pytest.raises(InputError, match=r"a recipe has \[repair\] or \[gptq\], not both"):
        load_recipe(write('name = "mine"\n[[rules]]\nmatch = "*"\nweight = "int3-g32"\n' + both))


def test_a_recipe_survives_its_json() -> None:
    recipe = load_recipe("k3-w4a8")
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_stray_file_does_not_replace_a_bundled_recipe(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("").parent
    (folder / "int2").write_text('name = "stray"')
    (folder / "other").write_text('name = "stray"')
    monkeypatch.chdir(folder)
    assert load_recipe("int2").name == "int2"
    assert load_recipe("./int2").name == "stray"
    assert load_recipe("other").name == "stray"


@pytest.mark.parametrize("given", ["no/such/recipe", "./int2", "int2.toml", "../int2", "a" * 5000 + ".toml"])
def test_a_path_that_is_not_there_is_never_taken_for_a_name(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="nothing of that name"):
        load_recipe(given)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(InputError, match=r"the recipe 'k3-w4a6'.*did you mean k3-w4a16, k3-w4a8"):
        load_recipe("k3-w4a6")
    with pytest.raises(InputError, match="the contract 'defualt'.*did you mean default"):
        load_contract("defualt")
    with pytest.raises(InputError, match=r"write \./zzz"):
        load_recipe("zzz")


FAULTS = {
    "unknown root key": ('name = "a"\nrequantise = true', r"the unknown key requantise.*did you mean requantize\?"),
    "unknown key of a rule": (
        'name = "a"\n[[rules]]\nmatch = "*"\nwieght = "nf4-b64"\nweight = "nf4-b64"',
        r"the unknown key rules\[0\]\.wieght; expected a key among match, weight, activation; did you mean weight\?",
    ),
    "unknown key of the execution": ('name = "a"\n[execution]\ntype = "x"', r"execution\.type.*among dtype"),
    "text for a truth value": ('name = "a"\nrequantize = "yes"', "requantize = 'yes'; expected a valid boolean"),
    "number for a name": ("name = 3", "name = 3; expected a valid string"),
    "date for a name": ("name = 2026-01-01", "name = datetime.date"),
    "text for a list": ('name = "a"\nnotes = "x"', "notes = 'x'; expected a valid array"),
    "unknown dtype": ('name = "a"\n[execution]\ndtype = "float16"', "'float16'; expected 'float32' or 'bfloat16'"),
    "no name": ("", "no key name; expected name to be there; add name"),
    "empty name": ('name = ""', "name = ''"),
    "rule without match": ('name = "a"\n[[rules]]\nweight = "x"', r"no key rules\[0\]\.match"),
    "rule that does nothing": ('name = "a"\n[[rules]]\nmatch = "x.y"', "'x.y' names neither a weight nor"),
    "another schema": ('schema_version = 2\nname = "a"', "schema_version = 2; expected schema_version = 1"),
    "no TOML": ("name = ", "expected TOML in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_recipe_is_named_with_file_key_and_cure(fault: str, write: Write) -> None:
    text, message = FAULTS[fault]
    path = write(text)
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(path)
    assert str(path) in caught.value.given
    assert "\n" not in str(caught.value)


CONTRACT_FAULTS = {
    "text for a number": ('min_probes = "300"\n', "min_probes = '300'; expected a valid integer"),
    "no evidence": ("min_probes = 0\n", "min_probes = 0; expected greater than or equal to 1"),
    "unknown stage": (GOOD_CLAUSE.replace("task", "safty"), r"clauses\[0\]\.stage = 'safty'; expected 'integrity', "),
    "no margin at all": (GOOD_CLAUSE + "margin = 0\n", r"clauses\[0\]\.margin = 0; expected greater than 0"),
    "endless margin": (GOOD_CLAUSE + "margin = inf\n", r"clauses\[0\]\.margin = inf; expected a valid number"),
    "undefined margin": (GOOD_CLAUSE + "margin = nan\n", r"clauses\[0\]\.margin = nan"),
    "alpha of a coin": (GOOD_CLAUSE + "alpha = 0.5\n", r"clauses\[0\]\.alpha = 0\.5; expected less than 0\.5"),
    "unknown clause key": (GOOD_CLAUSE + "margn = 1.0\n", r"clauses\[0\]\.margn.*did you mean margin\?"),
    "one name twice": (GOOD_CLAUSE + GOOD_CLAUSE, "with two clauses 'a'"),
    "no clauses": ("clauses = []\n", "without clauses"),
}  # fmt: skip


@pytest.mark.parametrize("fault", CONTRACT_FAULTS)
def test_a_fault_of_a_contract_is_named_with_its_key(fault: str, write: Write) -> None:
    text, message = CONTRACT_FAULTS[fault]
    body = text if "clauses" in text else text + GOOD_CLAUSE
    with pytest.raises(InputError, match=message):
        load_contract(write('name = "mine"\n' + body))


def test_all_faults_are_reported_at_once(write: Write) -> None:
    with pytest.raises(InputError, match="3 faults: .*notes = 3 .*rules.*mach.*requantise"):
        load_recipe(write('name = "a"\nnotes = 3\nrequantise = true\n[[rules]]\nmatch = "*"\nweight = "x"\nmach = "*"'))


def test_files_that_are_no_recipes_are_refused_unread(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match=f"of {MAX_BYTES + 1:,} bytes"):
        load_recipe(large)
    with pytest.raises(InputError, match="a file, not a folder"):
        load_recipe(tmp_path)
    binary = tmp_path / "model.safetensors"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected TOML in UTF-8"):
        load_recipe(binary)
