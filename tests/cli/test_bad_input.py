"""Bad input of every kind ends with exit code 2 and one line: what was given, what was expected, how to fix it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from quantaudit.core.serial import Json
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, edit_json, edit_tensors
from tests.cli.command import Command, Ended, interpret, is_one_line

Tensors = dict[str, tuple[str, list[int], bytes]]
INDEX = f"{WEIGHTS}.index.json"
EXPERT = f"{LAYER_2}.0.w1"
PAIRED = ("--lo", "packed")


class Case(NamedTuple):
    """Something done to the models, the arguments of `run`, and what the message must contain."""

    damage: Callable[[Path], object]
    arguments: tuple[str, ...]
    said: str


class _Trap:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("trap-was-sprung", "w"))


def nothing(models: Path) -> None:
    """Leaves the models as they are."""


def of_tensors(name: str, change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    return lambda models: edit_tensors(models / name / WEIGHTS, change)


def of_config(name: str, change: Callable[[dict[str, Json]], object]) -> Callable[[Path], None]:
    return lambda models: edit_json(models / name / "config.json", change)


def in_text_config(key: str, value: Json) -> Callable[[dict[str, Json]], None]:
    def change(values: dict[str, Json]) -> None:
        text = values["text_config"]
        assert isinstance(text, dict)
        text[key] = value

    return change


def cut(models: Path) -> None:
    path = models / "plain" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1000])


def lose_a_shard(models: Path) -> None:
    sorted((models / "sharded").glob("*.safetensors"))[1].unlink()


def name_absent_tensors(models: Path) -> None:
    def change(values: dict[str, Json]) -> None:
        weight_map = values["weight_map"]
        assert isinstance(weight_map, dict)
        weight_map["language_model.model.layers.9.norm.weight"] = next(iter(weight_map.values()))

    edit_json(models / "sharded" / INDEX, change)


def store_in_half(tensors: Tensors) -> None:
    _, shape, raw = tensors[f"{EXPERT}.weight"]
    tensors[f"{EXPERT}.weight"] = ("F16", shape, raw)


def put(name: str, raw: bytes) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        dtype, shape, old = tensors[name]
        tensors[name] = (dtype, shape, raw + old[len(raw) :])

    return change


def pickled(models: Path) -> None:
    (models / "plain" / WEIGHTS).write_bytes(pickle.dumps(_Trap(), protocol=4))


def only_pickles(models: Path) -> None:
    (models / "plain" / WEIGHTS).unlink()
    (models / "plain" / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(), protocol=4))


def a_pickle(models: Path) -> None:
    (models / "model.pt").write_bytes(pickle.dumps(_Trap(), protocol=4))


def recipe(rule: str, head: str = "") -> Callable[[Path], object]:
    text = f'name = "mine"\n{head}\n[[rules]]\n{rule}\n'
    return lambda models: (models / "mine.toml").write_text(text)


def contract(clause: str, head: str = "") -> Callable[[Path], object]:
    text = f'name = "mine"\n{head}\n[[clauses]]\nname = "only"\n{clause}\n'
    return lambda models: (models / "mine.toml").write_text(text)


FIDELITY = 'stage = "fidelity"\nobserver = "nll"\nmargin = 0.02'
EXPERTS = 'match = "layers.*.experts.w[123]"'
MY_RECIPE = ("plain", "--recipe", "mine.toml")
MY_CONTRACT = ("plain", "--contract", "mine.toml")

# Found from paths, headers and files of text alone, so torch is never imported.
EARLY = {
    "a missing shard": Case(lose_a_shard, ("sharded",), "lacks 1 of"),
    "a missing shard of lo": Case(lose_a_shard, ("plain", "--lo", "sharded"), "lacks 1 of"),
    "a truncated file": Case(cut, ("plain",), "model.safetensors is cut short"),
    "a wrong dtype": Case(of_tensors("plain", store_in_half), ("plain",), "is stored as F16; expected BF16 or F32"),
    "an index naming absent tensors": Case(name_absent_tensors, ("sharded",), "names 1 tensors that their shards"),
    "an unknown config key": Case(
        of_config("plain", in_text_config("router_temperature", 2.0)), ("plain",), "unknown key 'router_temperature'"
    ),
    "a config value that is not implemented": Case(
        of_config("plain", in_text_config("moe_router_activation_func", "softmax")), ("plain",), '= "softmax"'
    ),
    "no config": Case(lambda m: (m / "plain" / "config.json").unlink(), ("plain",), "has no config.json"),
    "an unknown recipe key": Case(recipe(f'{EXPERTS}\nweigth = "nf4-b64"'), MY_RECIPE, "weigth"),
    "an unknown scheme": Case(recipe(f'{EXPERTS}\nweight = "mxfp4-evn"'), MY_RECIPE, "mxfp4-evn"),
    "an unknown contract key": Case(contract(f"{FIDELITY}\nmargins = 1"), MY_CONTRACT, "margins"),
    "a margin that is text": Case(contract(FIDELITY.replace("0.02", '"0.02"')), MY_CONTRACT, "margin"),
    "an unknown recipe": Case(nothing, ("plain", "--recipe", "k3-w4a9"), "did you mean k3-w4a8"),
    "a recipe file that is not there": Case(nothing, ("plain", "--recipe", "./no.toml"), "no.toml; expected a file"),
    "an unknown contract": Case(nothing, ("plain", "--contract", "defualt"), "the contract 'defualt'"),
    "unknown probes": Case(nothing, ("plain", "--probes", "world/train"), "the probe set 'world/train'"),
    "an empty folder": Case(lambda m: (m / "empty").mkdir(), ("empty",), "is empty"),
    "a path that does not exist": Case(nothing, ("/no/such-org/model",), "never taken for a hub name"),
    "a file instead of its folder": Case(nothing, (f"plain/{WEIGHTS}",), "is a file"),
    "a pickle": Case(a_pickle, ("model.pt",), "is a pickle"),
    "a folder of pickles": Case(only_pickles, ("plain",), "is a pickle"),
    "a pickle under another name": Case(pickled, ("plain",), "is a pickle or an archive"),
    "a pickle as lo": Case(a_pickle, ("plain", "--lo", "model.pt"), "is a pickle"),
    "another architecture": Case(nothing, ("plain", "--lo", "larger"), "num_experts is 8, not 6"),
    "lo and a recipe": Case(nothing, ("plain", *PAIRED, "--recipe", "nf4"), "both lo (packed) and recipe (nf4)"),
    "a small vocabulary": Case(nothing, ("letters",), "a vocabulary of 40 tokens"),
    "no thread": Case(nothing, ("plain", "--threads", "0"), "0 threads"),
    "no batch": Case(nothing, ("plain", "--batch-size", "0"), "a batch size of 0"),
    "an unknown device": Case(nothing, ("plain", "--device", "tpu"), "device 'tpu'"),
    "an output that is a file": Case(nothing, ("plain", "-o", f"plain/{WEIGHTS}"), "cannot be written"),
    "an output below a file": Case(nothing, ("plain", "-o", f"plain/{WEIGHTS}/deep/er"), "cannot be written"),
    "an output where nothing can be made": Case(nothing, ("plain", "-o", "/proc/quantaudit"), "cannot be written"),
}
# Found where tensors are read or the recipe meets the model.
LATE = {
    "a NaN": Case(of_tensors("plain", put(f"{EXPERT}.weight", b"\xc0\x7f")), ("plain",), "holds 1 values that are NaN"),
    "an infinity": Case(
        of_tensors("other", put(f"{EXPERT}.weight", b"\x80\xff")), ("plain", "--lo", "other"), "NaN or infinite"
    ),
    "a NaN scale": Case(
        of_tensors("packed", put(f"{EXPERT}.weight_scale", b"\xff")), ("plain", *PAIRED), "scales of 255, which is NaN"
    ),
    "a rule matching no tensor": Case(
        recipe('match = "layers.*.expert.w1"\nweight = "nf4-b64"'), MY_RECIPE, "'layers.*.expert.w1' decides no module"
    ),
    "a group that does not divide": Case(recipe(f'{EXPERTS}\nweight = "int4-g128-div7"'), MY_RECIPE, "128"),
    "double quantization": Case(nothing, ("packed", "--recipe", "int4-g32"), "requantize = true"),
    "an observer that is not there": Case(
        contract(FIDELITY.replace("nll", "perplexity")), MY_CONTRACT, "the observer 'perplexity'"
    ),
    "a gate without a margin": Case(
        contract(FIDELITY.replace("margin = 0.02", "")), MY_CONTRACT, "gate 'only' cannot be decided"
    ),
}


def check(ended: Ended, case: Case, here: Path) -> None:
    assert ended.code == 2, ended.err
    assert ended.out == ""
    progress, _, message = ended.err.rpartition("quantaudit: ")
    assert is_one_line(f"quantaudit: {message}")
    assert all(line.split(":")[0] in ("start", "open", "weights") for line in progress.splitlines())
    assert case.said in message
    given, expected, fix = message.partition("; expected ")[0], *message.partition("; expected ")[2].split("; ", 1)
    assert given and expected and fix.strip()
    assert "Traceback" not in ended.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("case", EARLY.values(), ids=EARLY.keys())
def test_what_paths_and_headers_show_is_refused(
    case: Case, models: Path, quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    case.damage(models)
    monkeypatch.chdir(models)
    before = sorted(models.rglob("*"))
    check(quantaudit("run", *case.arguments), case, here)
    assert sorted(models.rglob("*")) == before


@pytest.mark.parametrize("case", LATE.values(), ids=LATE.keys())
def test_what_tensors_and_rules_show_is_refused(
    case: Case, models: Path, quantaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    case.damage(models)
    monkeypatch.chdir(models)
    check(quantaudit("run", *case.arguments, "-o", here / "out"), case, here)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(models: Path, quantaudit: Command) -> None:
    check(quantaudit("run", models / "plain", "--device", "cuda"), Case(nothing, (), "device 'cuda'"), Path.cwd())


def test_no_pickle_is_ever_loaded(models: Path, quantaudit: Command) -> None:
    for damage, name in ((a_pickle, "model.pt"), (pickled, "plain"), (only_pickles, "plain")):
        (models / "plain" / WEIGHTS).touch()
        damage(models)
        assert quantaudit("run", models / name).code == 2
        assert quantaudit("inspect", models / name).code == 2
    assert list(Path.cwd().iterdir()) == []


def test_early_faults_are_found_without_torch(written: Path, tmp_path: Path) -> None:
    """All of them in one fresh interpreter, each on a copy of its own."""
    runs = []
    for number, case in enumerate(EARLY.values()):
        models = Path(shutil.copytree(written, tmp_path / str(number)))
        case.damage(models)
        runs.append([str(models), ["run", *case.arguments]])
    code = f"""
import json, os, sys
from quantaudit.cli.main import _run
for folder, arguments in json.loads({json.dumps(runs)!r}):
    os.chdir(folder)
    print(_run(arguments), "torch" in sys.modules)
"""
    assert interpret(code, cwd=tmp_path).splitlines() == ["2 False"] * len(EARLY)
