"""What is written is read back bit for bit, in the layout's own terms, all of it or nothing."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.checkpoint.config_json import read_config
from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.folder import INDEX_FILE
from quantaudit.checkpoint.index import read_index
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.names import Role
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.unstack import Parameters, round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.numerics import QuantizedTensor, get_scheme, quantize
from tests.checkpoint.tiny import TINY, WEIGHTS, random_state, save

EXPERTS = "model.layers.2.block_sparse_moe.experts"


def refused(path: Path, parameters: Parameters, *, scheme: Scheme | None = None) -> str:
    """Returns the message with which the parameters are refused, after checking that nothing is left behind."""
    path.parent.mkdir(exist_ok=True)
    with pytest.raises(InputError) as caught:
        write_checkpoint(path, TINY, parameters, scheme=scheme, shard_bytes=5_000)
    assert list(path.parent.iterdir()) == []
    return str(caught.value)


def changed(name: str, value: Tensor | QuantizedTensor) -> Parameters:
    """Returns the random parameters with one replaced."""
    return (dict[str, Tensor | QuantizedTensor](random_state()) | {name: value}).items()


@pytest.mark.parametrize("rule", ["mxfp4-floor", "mxfp4-even", "mxfp4-rceil", "mxfp4-ceil", "mxfp4-even-away"])
def test_quantized_here_or_before_makes_the_same_files(tmp_path: Path, rule: str) -> None:
    scheme, state = get_scheme(rule), random_state()
    before = [(n, quantize(t, scheme) if ".experts." in n else t) for n, t in state.items()]
    write_checkpoint(tmp_path / "a", TINY, state.items(), scheme=scheme, shard_bytes=None)
    write_checkpoint(tmp_path / "b", TINY, before, scheme=None, shard_bytes=None)
    for name in (WEIGHTS, "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", ["plain", "packed", "sharded"])
def test_read_and_written_again_the_files_are_the_same(written: Path, tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(written / name)
    stacks = {
        f"model.layers.{layer}.block_sparse_moe.experts.{role}.weight": checkpoint.expert_stack(layer, role)
        for layer in (2, 4)
        for role in Role
    }
    parameters = [(n, stacks.get(n, p.detach())) for n, p in load_model(checkpoint).named_parameters()]
    shard_bytes = 20_000 if name == "sharded" else None
    write_checkpoint(tmp_path / name, checkpoint.config, parameters, scheme=None, shard_bytes=shard_bytes)
    files = sorted(path.name for path in (written / name).iterdir())
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == files
    for file in files:
        assert (tmp_path / name / file).read_bytes() == (written / name / file).read_bytes()


@pytest.mark.parametrize("shard_bytes", [None, 1, 3_000, 20_000, 10**9])
def test_sharding_changes_no_tensor(written: Path, tmp_path: Path, shard_bytes: int | None) -> None:
    folder = save(tmp_path / "c", shard_bytes=shard_bytes)
    assert digest_checkpoint(open_checkpoint(folder)) == digest_checkpoint(open_checkpoint(written / "plain"))
    index = read_index(folder)
    if shard_bytes is None:
        assert [path.name for path in index.files] == [WEIGHTS]
        return
    for path in index.files:
        sizes = [t.entry.num_bytes for t in index.tensors.values() if t.file == path]
        assert sum(sizes) <= shard_bytes or len(sizes) == 1
    count = len(index.files)
    assert [path.name for path in index.files] == [
        f"model-{i + 1:05d}-of-{count:06d}.safetensors" for i in range(count)
    ]


@pytest.mark.parametrize(("heads", "length"), [(5, 32), (32, 32), (33, 64), (96, 128)])
def test_a_log_is_padded_as_in_the_release(tmp_path: Path, heads: int, length: int) -> None:
    config = replace(TINY, linear_attn_config=replace(TINY.linear_attn_config, num_heads=heads, head_dim=2))
    folder = save(tmp_path / "c", config=config)
    name = "language_model.model.layers.0.self_attn.A_log"
    assert read_index(folder).tensors[name].entry.shape == (length,)
    stored = open_checkpoint(folder).read(name)
    assert stored[:heads].all() and not stored[heads:].any()


def test_only_packed_checkpoints_declare_a_quantization(written: Path) -> None:
    assert read_config(written / "plain").declared is None
    assert read_config(written / "packed").declared is not None


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    save(tmp_path / "c")
    open_checkpoint(tmp_path / "c")


def test_parents_are_created_and_files_are_readable_by_all(tmp_path: Path) -> None:
    folder = save(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())


def test_nothing_is_overwritten(plain: Path) -> None:
    before = (plain / WEIGHTS).read_bytes()
    for path in (plain, plain / WEIGHTS):
        with pytest.raises(InputError, match="is there already; expected a new or an empty folder"):
            save(path, seed=1)
    assert (plain / WEIGHTS).read_bytes() == before


def test_a_place_that_cannot_be_written_is_refused(plain: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        save(plain / WEIGHTS / "below" / "a" / "file")


def test_a_failure_midway_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> Iterator[tuple[str, Tensor]]:
        yield from list(random_state().items())[:60]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "c", TINY, fail(), scheme=None, shard_bytes=1_000)
    assert list(tmp_path.iterdir()) == []


def test_files_are_on_the_disk_before_the_folder_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(handle: int) -> None:
        events.append("fsync")
        fsync(handle)

    def record_rename(source: Path, target: Path) -> None:
        if target == tmp_path / "c":
            events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path / "c", shard_bytes=20_000)
    num_files = len(list((tmp_path / "c").iterdir()))
    # Every file and the folder before the rename, the parent after it.
    assert events == ["fsync"] * (num_files + 1) + ["rename", "fsync"]


def test_missing_unknown_and_repeated_parameters_are_refused(tmp_path: Path) -> None:
    state = random_state()
    path = tmp_path / "d" / "c"
    assert "2 parameters are missing, first lm_head.weight" in refused(
        path, [item for item in state.items() if item[0] not in ("lm_head.weight", f"{EXPERTS}.w1.weight")]
    )
    assert "the parameter 'model.extra.weight'" in refused(path, changed("model.extra.weight", torch.zeros(1)))
    assert "the parameter 'lm_head.weight'" in refused(
        path, [*state.items(), ("lm_head.weight", state["lm_head.weight"])]
    )


@pytest.mark.parametrize("name", ["lm_head.weight", f"{EXPERTS}.w2.weight", "model.layers.0.self_attn.A_log"])
def test_wrong_shapes_and_values_are_refused(tmp_path: Path, name: str) -> None:
    good = random_state()[name]
    path = tmp_path / "d" / "c"
    assert f"{name} of shape" in refused(path, changed(name, good[1:]))
    for value in (float("nan"), float("inf")):
        bad = good.clone()
        bad.view(-1)[-1] = value
        assert f"{name} holds 1 values that are NaN or infinite" in refused(path, changed(name, bad))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("lm_head.weight", torch.float16),
        ("lm_head.weight", torch.float64),
        (f"{EXPERTS}.w2.weight", torch.float16),
        ("model.layers.0.self_attn.A_log", torch.bfloat16),
        ("model.layers.2.block_sparse_moe.gate.e_score_correction_bias", torch.bfloat16),
    ],
)
def test_dtypes_outside_the_layout_are_refused(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    message = refused(tmp_path / "d" / "c", changed(name, random_state()[name].to(dtype)))
    assert f"{name} in {dtype}" in message and "round_to_storage" in message


@pytest.mark.parametrize("scheme", ["nf4-b64", "mxfp6-e2m3-even", "nf4-b64-double", "mxfp8-e5m2-even"])
def test_other_schemes_have_no_place_in_this_layout(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "d" / "c"
    assert f"experts in {scheme}; expected MXFP4" in refused(path, random_state().items(), scheme=get_scheme(scheme))
    stack = f"{EXPERTS}.w2.weight"
    quantized = quantize(random_state()[stack], get_scheme(scheme))
    assert f"experts in {scheme}" in refused(path, changed(stack, quantized))


def test_quantized_experts_of_another_shape_are_refused(tmp_path: Path) -> None:
    stack = f"{EXPERTS}.w2.weight"
    quantized = quantize(random_state()[stack][1:], get_scheme("mxfp4-even"))
    assert f"{stack} of shape [5, 64, 32]; expected [6, 64, 32]" in refused(
        tmp_path / "d" / "c", changed(stack, quantized)
    )


def test_quantized_experts_that_decode_to_nan_are_refused(tmp_path: Path) -> None:
    stack = f"{EXPERTS}.w2.weight"
    quantized = quantize(random_state()[stack], get_scheme("mxfp4-even"))
    quantized.scales[3, 0, 0] = 255
    assert f"{stack} has 1 scales of 255, which is NaN" in refused(tmp_path / "d" / "c", changed(stack, quantized))


def test_only_experts_are_packed(tmp_path: Path) -> None:
    quantized = quantize(torch.randn(32, 32), get_scheme("mxfp4-even"))
    assert "lm_head.weight in mxfp4-even; expected only routed" in refused(
        tmp_path / "d" / "c", changed("lm_head.weight", quantized)
    )


def test_experts_of_partial_groups_cannot_be_packed(tmp_path: Path) -> None:
    config = replace(TINY, moe_intermediate_size=48)
    with pytest.raises(InputError, match="groups of 32"):
        save(tmp_path / "c", config=config, scheme=get_scheme("mxfp4-even"))
    assert list(tmp_path.iterdir()) == []
    open_checkpoint(save(tmp_path / "c", config=config))


@pytest.mark.parametrize("shard_bytes", [0, -1])
def test_a_shard_has_a_positive_size(tmp_path: Path, shard_bytes: int) -> None:
    with pytest.raises(InputError, match=f"shards of {shard_bytes} bytes"):
        save(tmp_path / "c", shard_bytes=shard_bytes)


def test_rounding_to_storage_is_to_nearest_even_and_leaves_float32_alone() -> None:
    tie = struct.unpack("<f", struct.pack("<I", 0x3F808000))[0]
    wide = {name: torch.full(t.shape, tie) for name, t in random_state().items()}
    stored = dict(round_to_storage(wide.items(), TINY))
    assert (stored["lm_head.weight"] == 1.0).all() and stored["lm_head.weight"].dtype == torch.bfloat16
    assert torch.equal(stored["model.layers.0.self_attn.dt_bias"], wide["model.layers.0.self_attn.dt_bias"])


def test_the_index_names_every_tensor_in_order(written: Path) -> None:
    index = json.loads((written / "sharded" / INDEX_FILE).read_text())
    assert list(index["weight_map"]) == sorted(read_index(written / "sharded").tensors)
