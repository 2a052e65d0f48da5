"""Experts are read as the forward pass sees them, whatever the model calls them and however they lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.hooks.experts import read_experts

ROLES_OF_ONE = ("gate", "up", "down")


class _GptOssExperts(nn.Module):
    """Experts as gpt-oss has them: transposed, gate and up in turn."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.is_transposed, self.is_concatenated = True, False
        self.gate_up_proj = nn.Parameter(torch.stack((gate, up), 2).flatten(1, 2).transpose(1, 2).contiguous())
        self.down_proj = nn.Parameter(down.transpose(1, 2).contiguous())


class _SingleExpert(nn.Module):
    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        super().__init__()
        for name, x in (("w1", gate), ("w3", up), ("w2", down)):
            linear = nn.Linear(x.shape[1], x.shape[0], bias=False)
            linear.weight = nn.Parameter(x)
            self.add_module(name, linear)


def in_layers(experts: nn.Module) -> nn.Module:
    block = nn.ModuleDict({"experts": experts})
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": block})])})})


@pytest.mark.parametrize("is_single", [False, True])
def test_every_arrangement_is_read_as_out_times_in(*, is_single: bool) -> None:
    gate, up, down = torch.randn(3, 6, 8), torch.randn(3, 6, 8), torch.randn(3, 8, 6)
    single = nn.ModuleList([_SingleExpert(gate[e], up[e], down[e]) for e in range(3)])
    found = read_experts(in_layers(single if is_single else _GptOssExperts(gate, up, down)))
    for role, x in (("gate", gate), ("up", up), ("down", down)):
        assert torch.equal(found[f"layers.0.experts.{role}"], x)


def test_wrappers_do_not_show_in_names() -> None:
    model = in_layers(_GptOssExperts(torch.ones(1, 2, 2), torch.ones(1, 2, 2), torch.ones(1, 2, 2)))
    wrapped = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": model})})
    assert read_experts(wrapped).keys() == read_experts(model).keys() == {f"layers.0.experts.{r}" for r in ROLES_OF_ONE}


def test_missing_experts_and_models_without_any_are_refused() -> None:
    x = torch.ones(4, 4)
    some = nn.ModuleDict({"0": _SingleExpert(x, x, x), "2": _SingleExpert(x, x, x)})
    with pytest.raises(InputError, match=r"experts \[0, 2\]"):
        read_experts(in_layers(some))
    with pytest.raises(NotMeasuredError, match="no routed experts"):
        read_experts(nn.Linear(2, 2))
