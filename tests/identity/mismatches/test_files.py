"""Every fault, planted by hand in a random checkpoint on disk, is named by the verbs, or said to be latent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

from quantaudit.cli.compare import compare
from quantaudit.cli.identify import identify
from quantaudit.identity.mismatches.protocol import Layer, Projection
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.numerics import fake_quantize, get_scheme, pack
from tests.identity.mismatches.planted import PLANTS, random_masters, trained

ROLES = {Projection.GATE: "gate_proj", Projection.UP: "up_proj", Projection.DOWN: "down_proj"}
RULE = "mxfp4-even"
# With power-of-two scales quantizing again changes nothing; there is no zero point; and a layer that was not meant to
# be quantized is, to whoever has only the files, one that is quantized.
LATENT, CANNOT_HAPPEN, IS_A_RULE = {"again"}, {"zero"}, {"included"}
NEEDS_CODES = {"scales of experts"}
FEW = ["nibbles", "experts", "scales", "swapped", "one expert", "skipped", "again", "included", "scales of experts"]
ALL = [pytest.param(plant, marks=() if plant in FEW else pytest.mark.slow) for plant in PLANTS]
# Without a master: what only moves values or codes.
MOVED = {
    "nibbles": "nibble-order",
    "ggml blocks": "split-blocks",
    "scales": "transposed-scales",
    "axes": "transposed-weights",
    "swapped": "swapped-gate-up",
    "alternating": "interleaved-gate-up",
    "experts": "permuted-experts",
    "bias read twice": "exponent-offset",
}


def run(verb: object, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, object]:
    """Returns what a verb prints as JSON."""
    app = typer.Typer(add_completion=False)
    app.command()(verb)  # type: ignore[type-var]
    capsys.readouterr()
    code = app([*map(str, arguments), "--threads", "1", "--json"], standalone_mode=False)
    return {"exit": int(code), **json.loads(capsys.readouterr().out)}


def save(path: Path, stacks: dict[Projection, Tensor]) -> Path:
    """Writes plain numbers, an expert a tensor."""
    names = "model.layers.2.mlp.experts.{}.{}.weight"
    state = {names.format(e, ROLES[p]): x[e].contiguous().clone() for p, x in stacks.items() for e in range(len(x))}
    save_file(state, path)
    return path


def save_packed(path: Path, layer: Layer) -> Path:
    """Writes codes and scales as they are."""
    state = {}
    for projection, weight in layer.items():
        stored = weight.quantized
        assert stored is not None
        for e in range(stored.shape[0]):
            stem = f"model.layers.2.mlp.experts.{e}.{ROLES[projection]}"
            state[f"{stem}.weight_packed"] = pack(stored.codes[e], stored.scheme.layout)
            state[f"{stem}.weight_scale"] = stored.scales[e].clone()
    save_file(state, path)
    return path


def served(plant: str, train: Layer, path: Path) -> Path:
    """Writes what is served after a fault; of one that leaves masters as they are, one projection of the layer."""
    after = PLANTS[plant][1](train)
    assert after is not None
    if plant in NEEDS_CODES:
        return save_packed(path, after)
    changed = {name: weight.values for name, weight in after.items()}
    if plant == "skipped":
        changed = {name: changed[name] if name is Projection.UP else train[name].values for name in changed}
    return save(path, changed)


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The masters, newest first."""
    root, history = tmp_path_factory.mktemp("masters"), random_masters()
    count = len(next(iter(history.values())))
    return [save(root / f"{age}.safetensors", {p: past[age] for p, past in history.items()}) for age in range(count)]


@pytest.mark.parametrize("plant", ALL)
def test_identify_names_the_fault(
    plant: str, masters: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = trained(get_scheme(RULE))
    if plant in CANNOT_HAPPEN:
        assert PLANTS[plant][1](train) is None
        return
    source = {p: quantize_weight(history[0], get_scheme(RULE)) for p, history in random_masters().items()}
    path = save(tmp_path / "x.safetensors", {p: w.values for p, w in source.items()}) if plant in IS_A_RULE else None
    path = path or served(plant, train, tmp_path / "served.safetensors")
    options: list[str | Path] = ["--master", masters[0], "--earlier", masters[1], "--earlier", masters[2], "--latent"]
    found = run(identify, capsys, path, *options)
    tensors: list[dict[str, object]] = found["tensors"]  # type: ignore[assignment]
    right = PLANTS[plant][0]
    if plant in LATENT | IS_A_RULE:
        assert found["exit"] == 0 and {t["scheme"] for t in tensors} == {RULE}
        assert plant in IS_A_RULE or all(right in t["latent"] for t in tensors)  # type: ignore[operator]
        return
    assert found["exit"] == 3
    named = [t["mismatch"] for t in tensors if t["mismatch"] is not None]
    assert named and {(n["mismatch"], n["explains"]) for n in named} == {(right, 1.0)}  # type: ignore[index]
    assert {t["standing"] for t in tensors} <= {"explained", "explained by a mismatch"}


@pytest.mark.parametrize("plant", MOVED)
def test_compare_names_what_moved_between_two_quantized_sides(
    plant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = trained(get_scheme(RULE))
    a = save_packed(tmp_path / "a.safetensors", train)
    found = run(compare, capsys, a, served(plant, train, tmp_path / "b.safetensors"))
    diagnosis: list[dict[str, object]] = found["diagnosis"]  # type: ignore[assignment]
    assert found["exit"] == 3 and not found["identical"]
    assert [(d["mismatch"], d["explains"]) for d in diagnosis] == [(MOVED[plant], 1.0)]
    assert diagnosis[0]["kind"] in {"K8", "K11"} and diagnosis[0]["train"] != diagnosis[0]["serve"]
    back = run(compare, capsys, tmp_path / "b.safetensors", a)
    assert [(d["mismatch"]) for d in back["diagnosis"]] == [MOVED[plant]]  # type: ignore[attr-defined]


def test_compare_names_a_fault_on_top_of_a_rule(
    masters: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = PLANTS["scales of experts"][1](trained(get_scheme(RULE)))
    assert moved is not None
    found = run(compare, capsys, masters[0], save_packed(tmp_path / "b.safetensors", moved))
    diagnosis: list[dict[str, object]] = found["diagnosis"]  # type: ignore[assignment]
    assert (diagnosis[0]["kind"], diagnosis[0]["mismatch"], diagnosis[0]["explains"]) == (
        "K11",
        "permuted-experts",
        1.0,
    )


def test_compare_names_the_scale_rules_that_codes_point_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 512, 512, generator=generator) * torch.randn(1, 512, 1, generator=generator).exp()
    layers = [{Projection.DOWN: quantize_weight(x, get_scheme(name))} for name in ("mxfp4-floor", RULE)]
    sides = [save_packed(tmp_path / f"{i}.safetensors", layer) for i, layer in enumerate(layers)]
    found = run(compare, capsys, *sides)
    diagnosis: list[dict[str, object]] = found["diagnosis"]  # type: ignore[assignment]
    assert [(d["kind"], d["mismatch"], d["field"], d["explains"]) for d in diagnosis] == [
        ("K1", "scale-rule", "scale.rounding", 0.0)
    ]
    assert str(diagnosis[0]["train"]).startswith("floor") and str(diagnosis[0]["serve"]).startswith("even")


def test_compare_without_an_explanation_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = trained(get_scheme(RULE))
    generator = torch.Generator().manual_seed(0)
    other = {name: torch.randn(w.values.shape, generator=generator) for name, w in train.items()}
    a = save_packed(tmp_path / "a.safetensors", train)
    assert run(compare, capsys, a, save(tmp_path / "b.safetensors", other))["diagnosis"] == []


@pytest.mark.parametrize(
    ("train", "serve", "kind", "field"),
    [("mxfp4-floor", "mxfp4-rceil", "K1", "scale"), ("mxfp4-even", "mxfp4-even-away", "K4", "tie")],
)
def test_compare_with_a_master_names_the_rule_that_differs(
    train: str, serve: str, kind: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master = {Projection.DOWN: torch.randn(2, 32, 96).bfloat16()}
    master[Projection.DOWN][0, 0, :2] = torch.tensor([6.0, 0.25])  # a tie under every rule
    hi = save(tmp_path / "hi.safetensors", master)
    a = save(tmp_path / "a.safetensors", {p: fake_quantize(x, get_scheme(train)) for p, x in master.items()})
    layer = {p: quantize_weight(x, get_scheme(serve)) for p, x in master.items()}
    b = save_packed(tmp_path / "b.safetensors", layer)
    found = run(compare, capsys, a, b, "--master", hi)
    diagnosis: list[dict[str, object]] = found["diagnosis"]  # type: ignore[assignment]
    assert [(d["kind"], d["mismatch"], d["field"]) for d in diagnosis] == [(kind, "rules-differ", field)]
    assert str(diagnosis[0]["train"]).startswith(f"{train}: ") and str(diagnosis[0]["serve"]).startswith(f"{serve}: ")
