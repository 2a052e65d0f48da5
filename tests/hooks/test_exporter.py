"""What workers export equals, byte for byte, the manifest of the checkpoint, whatever packs, cuts or names it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quantaudit import hooks
from quantaudit.core.errors import InputError
from quantaudit.core.manifest import ALGORITHM, Manifest
from quantaudit.core.scheme import Layout
from quantaudit.hooks import shards as shards_module
from quantaudit.hooks.codings import Parts
from quantaudit.hooks.exporter import export_shard
from quantaudit.hooks.held import HeldWeight, hold
from quantaudit.hooks.merge import merge_shards
from quantaudit.hooks.shards import Shard, write_whole
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_path import fingerprint
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, pack, quantize, unpack
from tests.checkpoint.tiny import save
from tests.identity.test_compare import k3_and_hf
from tests.identity.test_layouts import in_module, weight, write

RULE = "mxfp4-even"
STACK = "layers.2.experts.gate"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 checkpoint and its packed twin."""
    root = tmp_path_factory.mktemp("models")
    save(root / "plain")
    save(root / "packed", scheme=get_scheme(RULE))
    return root


def tensors_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def stack(seed: int = 0, shape: tuple[int, int, int] = (6, 8, 128)) -> Tensor:
    return torch.stack([weight(*shape[1:], seed=seed + e) for e in range(shape[0])])


def packed_parts(x_EOI: Tensor, rule: str = RULE) -> dict[str, Tensor]:
    q = quantize(x_EOI, get_scheme(rule))
    return {"codes": pack(q.codes, q.scheme.layout), "scales": q.scales}


def test_one_worker_writes_the_file_that_fingerprint_writes(models: Path) -> None:
    for name in ("plain", "packed"):
        text = merge_shards([export_shard(hold(tensors_of(models / name)))])
        assert text == fingerprint(models / name, threads=1).to_json()


def test_fake_quantized_values_have_the_roots_of_the_packed_file(models: Path) -> None:
    """What a trainer exports: the experts of its master under the scheme, as plain bf16."""
    state = {
        name: fake_quantize(tensor, get_scheme(RULE)) if ".experts." in name and "shared" not in name else tensor
        for name, tensor in tensors_of(models / "plain").items()
    }
    trainer = Manifest.from_json(merge_shards([export_shard(hold(state))]))
    served = fingerprint(models / "packed", threads=1)
    assert trainer.values_root == served.values_root and trainer.expert_roots == served.expert_roots
    assert trainer.bytes_root != served.bytes_root


@pytest.mark.parametrize("scheme", ["mxfp4-even", "int4-g32-div7", "fp8-block128"])
@pytest.mark.parametrize("decode", ["bfloat16", "float32"])
def test_named_codings_decode_as_the_reference_does(scheme: str, decode: str, tmp_path: Path) -> None:
    x = torch.cat([weight(130, 192, seed=s) for s in (1, 2)], 1)  # blocks of 128 are partial at the lower edge
    q = quantize(x, get_scheme(scheme))
    parts: dict[str, Tensor] = {"weight_packed": pack(q.codes, q.scheme.layout), "weight_scale": q.scales}
    if scheme == "fp8-block128":
        parts = {"weight": q.codes.view(torch.float8_e4m3fn), "weight_scale_inv": q.scales}
    named = in_module(parts, "model.layers.1.self_attn.q_proj")
    text = merge_shards([export_shard(hold(named), decoded_to=decode)])
    assert text == fingerprint(write(tmp_path / "x.safetensors", named), decode=decode, threads=1).to_json()
    assert export_shard(hold(named), decoded_to=decode).entries[0].values == _leaf(
        dequantize(q, getattr(torch, decode))
    )


def _leaf(x: Tensor) -> str:
    return export_shard([HeldWeight(name="x", parts={"numbers": x})]).entries[0].values


def test_every_special_scale_and_code_decodes_as_the_reference_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(2).view(1, 512).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1).repeat(1, 32)
    tensors = in_module({"weight_packed": codes, "weight_scale": scales}, "model.layers.0.mlp.gate_proj")
    entry = export_shard(hold(tensors), decoded_to="float32").entries[0]
    q = quantize(torch.zeros(256, 1024), get_scheme(RULE))
    both = torch.stack((codes & 15, codes >> 4), -1).flatten(1)
    assert entry.values == _leaf(dequantize(replace(q, codes=both, scales=scales), torch.float32))


def cuts(x_EOI: Tensor, *, by: str) -> list[HeldWeight]:
    """Cuts a packed stack as expert-, row- and column-parallel workers hold it."""
    shape = tuple(x_EOI.shape)
    half = {"experts": shape[0] // 2, "rows": shape[1] // 2, "columns": shape[2] // 2}[by]
    axis = {"experts": 0, "rows": 1, "columns": 2}[by]
    held = []
    for i, box in enumerate(x_EOI.split(half, axis)):
        first = tuple(i * half if a == axis else 0 for a in range(3))
        held.append(HeldWeight(name=STACK, parts=packed_parts(box), coding="mxfp4", shape=shape, first=first))  # type: ignore[arg-type]
    return held


@pytest.mark.parametrize("by", ["experts", "rows", "columns"])
def test_shards_make_the_manifest_of_the_whole(by: str) -> None:
    x_EOI = stack()
    whole = merge_shards([export_shard([HeldWeight(name=STACK, parts=packed_parts(x_EOI), coding="mxfp4")])])
    shards = [export_shard([held], worker=f"rank {i}") for i, held in enumerate(cuts(x_EOI, by=by))]
    assert len(shards) > 1 and merge_shards(shards) == whole == merge_shards(shards[::-1])
    round_trip = [Shard.from_json(shard.to_json()) for shard in shards]
    assert round_trip == shards
    with pytest.raises(InputError, match=r"of 6144 values of layers\.2\.experts\.gate"):
        merge_shards(shards[:1])


def test_replicas_count_once_and_must_agree() -> None:
    x_EOI = stack()
    expert_halves = cuts(x_EOI, by="experts")
    a, b = (export_shard([held], worker=f"rank {i}") for i, held in enumerate(expert_halves))
    again = replace(a, worker="rank 2")
    assert merge_shards([a, b, again]) == merge_shards([a, b])
    stale = replace(expert_halves[0], parts=packed_parts(stack(seed=50)[:3]))
    with pytest.raises(InputError, match=r"gate: rank 0 and rank 3 hold one box with different values"):
        merge_shards([a, b, export_shard([stale], worker="rank 3")])


def test_boxes_that_overlap_are_refused() -> None:
    a, b = cuts(stack(), by="rows")
    with pytest.raises(InputError, match="overlap"):
        merge_shards([export_shard([a]), export_shard([replace(b, first=(0, 2, 0))])])
    with pytest.raises(InputError, match="a box of"):
        export_shard([replace(b, first=(0, 6, 0))])


def test_shards_of_two_versions_are_refused() -> None:
    a, b = (export_shard([held], weight_version=v) for v, held in enumerate(cuts(stack(), by="rows")))
    with pytest.raises(InputError, match="version 0 in bfloat16, version 1 in bfloat16"):
        merge_shards([a, b])
    with pytest.raises(InputError, match="no worker"):
        merge_shards([])


@pytest.mark.parametrize(("coding", "rule", "column"), [("mxfp4", RULE, 16), ("int4", "int4-g32-div7", 8)])
def test_a_cut_through_a_group_that_shares_a_scale_is_refused(coding: str, rule: str, column: int) -> None:
    """Scales of int4 are four bytes each: a cut after a quarter of a group is a whole byte of them, and wrong."""
    parts = packed_parts(weight(8, 32).unsqueeze(0), rule)
    held = HeldWeight(name=STACK, parts=parts, coding=coding, shape=(1, 8, 128), first=(0, 0, column))
    with pytest.raises(InputError, match=f"column {column}.*tiles of 1 x 32"):
        export_shard([held])


def test_a_layout_of_the_engine_is_decoded_by_its_own_function() -> None:
    """A kernel's layout: codes with the nibbles exchanged, scales transposed."""
    x_EOI = stack()
    parts = packed_parts(x_EOI)
    codes, scales = parts["codes"], parts["scales"]
    derived = {"kernel_codes": codes << 4 | codes >> 4, "kernel_scales": scales.transpose(1, 2).contiguous()}

    def decode(matrix: Parts) -> Tensor:
        codes, scales = matrix["kernel_codes"], matrix["kernel_scales"].T
        q = quantize(torch.zeros(scales.shape[0], 2 * codes.shape[1]), get_scheme(RULE))
        unpacked = unpack(codes, Layout.HIGH_NIBBLE_FIRST)
        return dequantize(replace(q, codes=unpacked, scales=scales), torch.float32)

    own = export_shard([HeldWeight(name=STACK, parts=derived, coding=decode)]).entries[0]
    plain = export_shard([HeldWeight(name=STACK, parts=parts, coding="mxfp4")]).entries[0]
    assert own.values == plain.values and own.experts == plain.experts
    assert own.storage == "layout of the engine" and own.bytes != plain.bytes
    stale = {**derived, "kernel_scales": derived["kernel_scales"] + 1}
    assert export_shard([HeldWeight(name=STACK, parts=stale, coding=decode)]).entries[0].values != plain.values


def test_fused_and_single_experts_are_one_tensor(tmp_path: Path) -> None:
    k3, hf, _ = k3_and_hf(tmp_path)
    one = merge_shards([export_shard(hold(load_file(hf)))])
    assert one == merge_shards([export_shard(hold(load_file(k3)))]) == fingerprint(k3, threads=1).to_json()
    experts = [
        load_file(hf)[f"model.layers.2.mlp.experts.{e}.{r}_proj.weight_packed"]
        for e in range(3)
        for r in ("gate", "up")
    ]
    scales = [
        load_file(hf)[f"model.layers.2.mlp.experts.{e}.{r}_proj.weight_scale"] for e in range(3) for r in ("gate", "up")
    ]
    fused = {
        "model.layers.2.mlp.experts.w13_weight": torch.stack(experts).view(3, 16, 32),
        "model.layers.2.mlp.experts.w13_weight_scale": torch.stack(scales).view(3, 16, 2),
    }
    entries = {entry.name: entry for entry in export_shard(hold(fused)).entries}
    manifest = Manifest.from_json(one)
    for name in ("layers.2.experts.gate", "layers.2.experts.up"):
        (expected,) = [tensor for tensor in manifest.tensors if tensor.name == name]
        assert (entries[name].values, entries[name].bytes) == (expected.values, expected.bytes)


def test_plain_stacks_of_transformers_are_split() -> None:
    gate, up, down = (stack(seed=s, shape=(3, 8, 64)) for s in (0, 10, 20))
    prefix = "model.layers.1.mlp.experts."
    state = {prefix + "gate_up_proj": torch.cat((gate, up), 1), prefix + "down_proj": down.transpose(1, 2).contiguous()}
    entries = {entry.name: entry for entry in export_shard(hold(state)).entries}
    for name, x in (("gate", gate), ("up", up), ("down", down.transpose(1, 2))):
        alone = export_shard([HeldWeight(name=f"layers.1.experts.{name}", parts={"numbers": x})]).entries[0]
        assert entries[f"layers.1.experts.{name}"] == alone


def test_a_worker_with_some_experts_says_how_many_there_are(tmp_path: Path) -> None:
    _, hf, _ = k3_and_hf(tmp_path)
    state = load_file(hf)
    parts = [{n: t for n, t in state.items() if (".experts.1." in n) == is_second} for is_second in (False, True)]
    shards = [export_shard(hold(part, num_experts=3), worker=str(i)) for i, part in enumerate(parts)]
    assert merge_shards(shards) == fingerprint(hf, threads=1).to_json()


@pytest.mark.gpu
def test_a_gpu_exports_what_a_cpu_does(models: Path) -> None:
    tensors = tensors_of(models / "packed")
    assert export_shard(hold({name: x.cuda() for name, x in tensors.items()})) == export_shard(hold(tensors))


def test_single_experts_can_be_left_out() -> None:
    held = [HeldWeight(name=STACK, parts=packed_parts(stack()), coding="mxfp4")]
    full, short = (Manifest.from_json(merge_shards([export_shard(held, experts=e)])) for e in (True, False))
    asked = Manifest.from_json(merge_shards([export_shard(held)], experts=False))
    assert len(full.expert_roots) == 6 and short.expert_roots == {} and asked == short
    assert full.values_root == short.values_root


def bad_weights() -> dict[str, tuple[dict[str, Tensor], str]]:
    """Returns parts and codings that do not fit each other."""
    parts = packed_parts(stack())
    scales = parts["scales"]
    return {
        "another coding": (parts, "nvfp4"),
        "the coding of other codes": (parts, "int4"),
        "transposed scales": (parts | {"scales": scales.transpose(1, 2).contiguous()}, "mxfp4"),
        "scales of another dtype": (parts | {"scales": scales.float()}, "mxfp4"),
        "no scales": ({"codes": parts["codes"]}, "mxfp4"),
        "codes as numbers": ({"numbers": parts["codes"]}, "plain"),
    }


@pytest.mark.parametrize("case", bad_weights())
def test_parts_that_do_not_fit_are_refused(case: str) -> None:
    parts, coding = bad_weights()[case]
    with pytest.raises(InputError, match=rf"layers\.2\.experts\.gate as '{coding}' with"):
        export_shard([HeldWeight(name=STACK, parts=parts, coding=coding)])


def test_stacks_of_two_lengths_and_unknown_codes_are_refused() -> None:
    parts = packed_parts(stack())
    with pytest.raises(InputError, match=r"with parts of \[5, 6\] experts"):
        export_shard([HeldWeight(name=STACK, parts={**parts, "scales": parts["scales"][:5]}, coding="mxfp4")])
    with pytest.raises(InputError, match="decoded_to"):
        export_shard([], decoded_to="fp8")
    int8 = in_module({"weight": torch.ones(4, 4, dtype=torch.int8), "weight_scale": torch.ones(4, 1)})
    with pytest.raises(InputError, match="codes and scales of"):
        hold(int8)


def test_a_file_that_is_no_shard_is_refused(tmp_path: Path) -> None:
    good = export_shard([HeldWeight(name=STACK, parts=packed_parts(stack()), coding="mxfp4")]).to_json()
    for text in (
        "{",
        "[]",
        '{"kind": "manifest"}',
        good.replace(ALGORITHM, "older"),
        good.replace('"first"', '"begin"'),
    ):
        with pytest.raises(InputError, match="a shard that cannot be read"):
            Shard.from_json(text)
    broken = json.loads(good)
    broken["entries"][0]["values"] = "12"
    with pytest.raises(InputError, match="32 hex digits"):
        Shard.from_json(json.dumps(broken))


def test_a_worker_and_compare_agree_through_files(models: Path, tmp_path: Path) -> None:
    served = tmp_path / "served.json"
    write_whole(served, merge_shards([export_shard(hold(tensors_of(models / "packed")))]))
    assert compare(served, models / "packed", threads=1).identical
    assert [p.name for p in tmp_path.iterdir()] == ["served.json"]


def test_the_algorithm_has_one_name() -> None:
    assert shards_module.ALGORITHM == ALGORITHM


def test_a_worker_needs_torch_and_the_standard_library_only() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pydantic', 'blake3', 'safetensors', 'transformers', 'pandas', 'scipy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import torch\n"
        "from quantaudit.hooks.exporter import export_shard\n"
        "from quantaudit.hooks.held import hold\n"
        "from quantaudit.hooks.merge import merge_shards\n"
        "assert merge_shards([export_shard(hold({'model.norm.weight': torch.ones(4)}))])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_of_the_hooks_loads_when_it_is_used() -> None:
    needs_transformers = {"audit_trainer"}
    assert all(getattr(hooks, name) is not None for name in hooks.__all__ if name not in needs_transformers)
    assert "StepAuditor" in dir(hooks)
    with pytest.raises(AttributeError, match="nothing_here"):
        hooks.nothing_here  # noqa: B018


def test_the_exporter_is_short() -> None:
    file = Path(shards_module.__file__).with_name("exporter.py")
    assert len(file.read_text().splitlines()) < 200
