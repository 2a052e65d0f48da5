"""A loaded model is what is stored, bit for bit, and computes from it what its wide copy computes."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quantaudit.checkpoint.load import load_model, load_unpacked
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.model.lm import LanguageModel
from quantaudit.model.segments import Segments
from quantaudit.numerics import fake_quantize, get_scheme
from tests.checkpoint.tiny import LAYER_2, TINY, WEIGHTS, edit_tensors, random_state, save

LENGTHS = (7, 1, 12)


def logits(model: LanguageModel, dtype: torch.dtype) -> torch.Tensor:
    """Returns the logits of a few fixed sequences."""
    tokens = torch.randint(0, 40, (sum(LENGTHS),), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        out: torch.Tensor = model(tokens, Segments.of(LENGTHS, torch.device("cpu")), dtype=dtype)
    return out


@pytest.mark.parametrize("name", ["plain", "packed", "sharded"])
def test_parameters_are_what_is_stored(written: Path, name: str) -> None:
    scheme = get_scheme("mxfp4-even")
    loaded = dict(load_model(open_checkpoint(written / name)).named_parameters())
    state = random_state()
    assert loaded.keys() == state.keys()
    for parameter, value in state.items():
        is_packed = ".experts." in parameter and name != "plain"
        expected = fake_quantize(value, scheme) if is_packed else value
        assert loaded[parameter].dtype == expected.dtype and torch.equal(loaded[parameter], expected), parameter


def test_float32_tensors_stay_float32(written: Path) -> None:
    dtypes = {name: p.dtype for name, p in load_model(open_checkpoint(written / "plain")).named_parameters()}
    assert dtypes["model.layers.0.self_attn.A_log"] == torch.float32
    assert dtypes["model.layers.2.block_sparse_moe.gate.e_score_correction_bias"] == torch.float32
    assert dtypes["model.layers.2.block_sparse_moe.gate.weight"] == torch.bfloat16
    assert dtypes["model.embed_tokens.weight"] == torch.bfloat16


def test_gradients_are_wanted_where_the_model_wants_them(written: Path) -> None:
    loaded = load_model(open_checkpoint(written / "plain"))
    expected = {name: p.requires_grad for name, p in LanguageModel(loaded.config).named_parameters()}
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == expected


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_narrow_storage_computes_what_wide_storage_computes(written: Path, name: str) -> None:
    checkpoint = open_checkpoint(written / name)
    narrow, wide = load_model(checkpoint), load_model(checkpoint, dtype=torch.float32)
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    expected = logits(wide, torch.float32)
    assert expected.isfinite().all()
    assert torch.equal(logits(narrow, torch.float32), expected)


def test_float64_storage_is_exact_and_computes(written: Path) -> None:
    checkpoint = open_checkpoint(written / "packed")
    narrow, wide = load_model(checkpoint), load_model(checkpoint, dtype=torch.float64)
    for stored, widened in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert widened.dtype == torch.float64 and torch.equal(widened, stored.double())
    assert logits(wide, torch.float64).isfinite().all()


def test_a_model_computes_in_bf16_from_narrow_storage(written: Path) -> None:
    out = logits(load_model(open_checkpoint(written / "plain")), torch.bfloat16)
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_storage_is_never_narrowed(written: Path) -> None:
    with pytest.raises(InputError, match=r"storage in torch\.bfloat16"):
        load_model(open_checkpoint(written / "plain"), dtype=torch.bfloat16)


def test_nothing_is_left_without_memory(written: Path) -> None:
    model = load_model(open_checkpoint(written / "packed"))
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_packed_stacks_can_be_left_out_and_nothing_else_is(written: Path) -> None:
    whole = dict(load_model(open_checkpoint(written / "packed")).named_parameters())
    for name, parameter in load_unpacked(open_checkpoint(written / "packed")).named_parameters():
        assert parameter.is_meta == (".experts." in name), name
        assert parameter.is_meta or torch.equal(parameter, whole[name])
    assert not any(p.is_meta for p in load_unpacked(open_checkpoint(written / "plain")).parameters())


def test_a_model_whose_every_token_takes_every_expert_runs(tmp_path: Path) -> None:
    config = replace(TINY, num_experts_per_token=TINY.num_experts)
    save(tmp_path / "all", config=config)
    checkpoint = open_checkpoint(tmp_path / "all")
    assert checkpoint.config.num_experts_per_token == checkpoint.config.num_experts == 6
    assert logits(load_model(checkpoint), torch.float32).isfinite().all()


@pytest.mark.parametrize("name", ["language_model.lm_head.weight", f"{LAYER_2}.0.w1.weight"])
def test_a_value_that_is_not_finite_stops_the_loading(plain: Path, name: str) -> None:
    edit_tensors(plain / WEIGHTS, lambda t: t.update({name: (t[name][0], t[name][1], b"\x80\xff" + t[name][2][2:])}))
    with pytest.raises(InputError, match="holds 1 values that are NaN or infinite"):
        load_model(open_checkpoint(plain))


def test_padding_that_is_not_zero_stops_the_loading(plain: Path) -> None:
    name = "language_model.model.layers.3.self_attn.A_log"
    edit_tensors(plain / WEIGHTS, lambda t: t.update({name: ("F32", [32], t[name][2][:-4] + struct.pack("<f", 1.0))}))
    with pytest.raises(InputError, match="behind its 5 heads"):
        load_model(open_checkpoint(plain))
