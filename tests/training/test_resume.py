"""Training that was interrupted goes on with the bits of training that was not; a state is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import quantaudit.training.state as state_module
from quantaudit.model.lm import LanguageModel
from quantaudit.training.embedded import EMBEDDED_CONFIG, Curriculum, build_optimizer, train
from quantaudit.training.state import load_state, save_state

BRIEF = Curriculum(num_steps=4, decay_steps=2, warmup_steps=2, items_per_step=4)


def bits(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Returns a copy of all parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.slow
def test_an_interrupted_run_has_the_bits_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantaudit.training.embedded.family_accuracy", lambda model, probes: {})
    whole = bits(train(tmp_path / "whole", BRIEF))
    half = bits(train(tmp_path / "cut", BRIEF, stop_after=2))
    resumed = bits(train(tmp_path / "cut", BRIEF))
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    experts = [name for name in whole if ".experts." in name]
    assert experts and all(not torch.equal(half[name], whole[name]) for name in experts)
    again = bits(train(tmp_path / "cut", BRIEF))
    assert all(torch.equal(again[name], value) for name, value in whole.items()), "a finished run stays as it is"


class Tiny(torch.nn.Module):
    """Two parameters to optimise."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(3, 2))
        self.b = torch.nn.Parameter(torch.randn(2))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes one optimizer step."""
        optimizer.zero_grad()
        (self.a @ self.b).square().sum().backward()
        optimizer.step()


def test_a_state_holds_parameters_moments_and_step(tmp_path: Path) -> None:
    first, second = Tiny(), Tiny()
    optimizers = [torch.optim.AdamW(m.parameters(), 0.1) for m in (first, second)]
    for _ in range(3):
        first.step(optimizers[0])
    save_state(tmp_path, first, optimizers[0], 3)
    assert load_state(tmp_path, second, optimizers[1]) == 3
    for model, optimizer in zip((first, second), optimizers, strict=True):
        model.step(optimizer)
    assert torch.equal(first.a, second.a) and torch.equal(first.b, second.b)


def test_without_a_state_training_starts_at_zero(tmp_path: Path) -> None:
    model = Tiny()
    before = model.a.detach().clone()
    assert load_state(tmp_path / "nowhere", model, torch.optim.AdamW(model.parameters())) == 0
    assert torch.equal(model.a, before)


def test_a_save_that_fails_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model.step(optimizer)
    save_state(tmp_path, model, optimizer, 1)
    kept = (tmp_path / "state.safetensors").read_bytes()

    def half_written(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        Path(path).write_bytes(kept[: len(kept) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(state_module, "save_file", half_written)
    model.step(optimizer)
    with pytest.raises(OSError, match="no space"):
        save_state(tmp_path, model, optimizer, 2)
    assert (tmp_path / "state.safetensors").read_bytes() == kept
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        assert file.metadata() == {"step": "1"}


def test_every_trained_parameter_is_in_the_state(tmp_path: Path) -> None:
    model = LanguageModel(EMBEDDED_CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    save_state(tmp_path, model, build_optimizer(model, BRIEF), 0)
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        assert set(file.keys()) == {f"model.{name}" for name, _ in model.named_parameters()}
