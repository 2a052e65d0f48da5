"""Manifests are equal exactly if the quantized values are, whatever packs or shards them, and say where they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import TensorClass
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.manifest import DecodedTo, Manifest
from quantaudit.hooks.leaf import Leaf, leaf_of_values
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_path import fingerprint
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, pack, quantize
from tests.checkpoint.tiny import random_state, save
from tests.identity.test_compare import changed, k3_and_hf
from tests.identity.test_layouts import in_module, weight, write

RULE = "mxfp4-even"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 checkpoint, packed twins of it, and one packed by another rule."""
    root = tmp_path_factory.mktemp("models")
    save(root / "plain")
    save(root / "packed", scheme=get_scheme(RULE))
    save(root / "sharded", scheme=get_scheme(RULE), shard_bytes=20_000)
    save(root / "floor", scheme=get_scheme("mxfp4-floor"))
    return root


def stored(manifest: Manifest, path: Path) -> Path:
    path.write_text(manifest.to_json())
    return path


def test_a_master_under_the_scheme_equals_the_packed_file(models: Path) -> None:
    master, packed = fingerprint(models / "plain", scheme=RULE, threads=1), fingerprint(models / "packed", threads=1)
    assert master.values_root == packed.values_root and master.bytes_root != packed.bytes_root
    assert master.layer_roots == packed.layer_roots and master.expert_roots == packed.expert_roots
    assert master.values_root != fingerprint(models / "plain", threads=1).values_root
    assert master.values_root != fingerprint(models / "floor", threads=1).values_root
    assert master.arithmetic_digest == get_scheme(RULE).arithmetic_digest


def test_shards_and_names_do_not_show(models: Path, tmp_path: Path) -> None:
    packed, sharded = (fingerprint(models / name, threads=1) for name in ("packed", "sharded"))
    assert packed == sharded
    k3, hf, _ = k3_and_hf(tmp_path)
    assert fingerprint(k3, threads=1) == fingerprint(hf, threads=1)


def test_a_trainer_gets_the_leaf_of_the_manifest_from_its_own_shards(models: Path) -> None:
    """Two tensor-parallel ranks times three expert-parallel ones, fake-quantizing what they hold."""
    name = "model.layers.2.block_sparse_moe.experts.w1.weight"
    stack_EOI = random_state()[name]
    num_out = stack_EOI.shape[1]
    total = Leaf()
    for expert, rank in [(e, r) for e in (4, 1, 0, 5, 3, 2) for r in (1, 0)]:
        shard = stack_EOI[expert, :, 32 * rank : 32 * rank + 32]
        fake = fake_quantize(shard.contiguous(), get_scheme(RULE))
        total += leaf_of_values(fake, first_row=expert * num_out, first_col=32 * rank)
    manifest = fingerprint(models / "packed", threads=1)
    assert total.hex == next(t.values for t in manifest.tensors if t.name == "layers.2.experts.gate")


def test_a_manifest_is_some_kilobytes_and_round_trips(models: Path) -> None:
    manifest = fingerprint(models / "packed", threads=1)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    num_bytes = sum(f.stat().st_size for f in (models / "packed").glob("*.safetensors"))
    assert len(text) < 300 * len(manifest.tensors) < num_bytes
    assert len(manifest.expert_roots) == 12 and set(manifest.layer_roots) == {"", "0", "1", "2", "3", "4"}


def test_one_changed_code_is_found_from_two_manifests(tmp_path: Path) -> None:
    k3, hf, _ = k3_and_hf(tmp_path)
    data = bytearray(k3.read_bytes())
    data[-100] ^= 1  # a code of the last matrix: w2 of expert 2; its scales are the last 64 bytes
    k3.write_bytes(data)
    a = stored(fingerprint(k3, threads=1), tmp_path / "a.json")
    b = stored(fingerprint(hf, threads=1), tmp_path / "b.json")
    k3.unlink()
    hf.unlink()
    found = compare(a, b, threads=1)
    assert found.counts == {TensorClass.BYTE_EQUAL: 2, TensorClass.DIFFERENT_VALUES: 1}
    (bad,) = [t for t in found.tensors if t.tensor_class is TensorClass.DIFFERENT_VALUES]
    assert (bad.name, bad.note, bad.num_different) == ("layers.2.experts.down", "experts 2", 1)
    assert int(found.exit_code) == 3 and compare(b, b, threads=1).identical


def test_another_packing_of_equal_values_is_value_equal(models: Path, tmp_path: Path) -> None:
    a = stored(fingerprint(models / "plain", scheme=RULE, threads=1), tmp_path / "a.json")
    b = stored(fingerprint(models / "packed", threads=1), tmp_path / "b.json")
    found = compare(a, b, threads=1)
    assert found.identical and found.counts == {TensorClass.BYTE_EQUAL: 118, TensorClass.VALUE_EQUAL: 6}
    assert not compare(a, b, by_bytes=True, threads=1).identical


def test_weights_are_fingerprinted_as_the_manifest_was(models: Path, tmp_path: Path) -> None:
    trained = stored(fingerprint(models / "plain", scheme=RULE, match="*experts*", threads=1), tmp_path / "a.json")
    assert compare(trained, models / "packed", threads=1).identical
    assert not compare(models / "floor", trained, threads=1).identical


def test_missing_tensors_are_named_on_each_side(tmp_path: Path) -> None:
    x = weight(2, 32)
    a = write(tmp_path / "a.safetensors", {"x": x, "only_here": x})
    b = write(tmp_path / "b.safetensors", {"x": x, "only_there": x})
    manifests = [stored(fingerprint(p, threads=1), p.with_suffix(".json")) for p in (a, b)]
    found = compare(*manifests, threads=1)
    assert (found.only_a, found.only_b) == (("only_here",), ("only_there",))


def test_packed_codes_are_decoded_to_the_dtype_asked(tmp_path: Path) -> None:
    x, scheme = weight(4, 64), get_scheme("int4-g32-div7")
    q = quantize(x, scheme)
    parts = {"weight_packed": pack(q.codes, scheme.layout), "weight_scale": q.scales}
    path = write(tmp_path / "int4.safetensors", in_module(parts))
    for decode, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        (tensor,) = fingerprint(path, decode=decode, threads=1).tensors
        # Expert 1 begins at row 4 of the stack.
        assert tensor.values == leaf_of_values(dequantize(q, dtype), first_row=4).hex


def test_no_two_bytes_of_a_file_share_a_place(tmp_path: Path) -> None:
    parts: dict[str, Tensor] = {
        "weight_packed": torch.zeros(3, 32, dtype=torch.uint8),
        "weight_scale": torch.zeros(3, 2, dtype=torch.uint8),
    }
    seen = set()
    for name, part in parts.items():
        for row in range(part.shape[0]):
            for col in range(part.shape[1]):
                other = in_module({**parts, name: changed(part, (row, col), 1)})
                seen.add(fingerprint(write(tmp_path / "x.safetensors", other), threads=1).bytes_root)
    assert len(seen) == 3 * 32 + 3 * 2


def test_a_cryptographic_digest_covers_the_stored_bytes(models: Path) -> None:
    packed, plain = (fingerprint(models / n, cryptographic=True, threads=1) for n in ("packed", "plain"))
    assert all(t.blake3 is not None and len(t.blake3) == 64 for t in packed.tensors)
    changed_names = {a.name for a, b in zip(packed.tensors, plain.tensors, strict=True) if a.blake3 != b.blake3}
    assert changed_names == {t.name for t in packed.tensors if ".experts." in t.name and "shared" not in t.name}


def test_single_experts_are_left_out_when_asked(models: Path, tmp_path: Path) -> None:
    short = fingerprint(models / "packed", experts=False, threads=1)
    full = fingerprint(models / "packed", threads=1)
    assert short.expert_roots == {} and short.values_root == full.values_root
    a, b = stored(short, tmp_path / "a.json"), stored(full, tmp_path / "b.json")
    assert compare(a, b, threads=1).identical


def test_codes_of_another_format_are_not_quantized_twice(models: Path) -> None:
    with pytest.raises(InputError, match=r"experts\.0\.w2.*quantizing twice"):
        fingerprint(models / "packed", scheme="int4-g32-div7", threads=1)


def test_a_scheme_without_experts_measures_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"x": weight(2, 32)})
    with pytest.raises(NotMeasuredError, match="no routed experts"):
        fingerprint(path, scheme=RULE, threads=1)


BAD_MANIFESTS = {
    "no JSON": "{",
    "another kind": '{"schema_version": 1, "kind": "report"}',
    "a report": '{"verdict": "ADMIT"}',
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_what_is_no_manifest_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(BAD_MANIFESTS[name])
    with pytest.raises(InputError, match=r"bad\.json is no manifest"):
        compare(path, path, threads=1)


def test_manifests_made_in_other_ways_are_not_compared(models: Path, tmp_path: Path) -> None:
    made = fingerprint(models / "packed", threads=1)
    other = {
        "decodes to": made.model_copy(update={"decoded_to": DecodedTo.FLOAT32}),
        "covers": made.model_copy(update={"match": "*x*"}),
        "algorithm": made.model_copy(update={"algorithm": "older"}),
    }
    a = stored(made, tmp_path / "a.json")
    for words, manifest in other.items():
        b = tmp_path / "b.json"
        b.write_text(manifest.to_json())
        with pytest.raises(InputError, match=words):
            compare(a, b, threads=1)
    with pytest.raises(InputError, match="beside a manifest"):
        compare(a, a, match="*", threads=1)


def test_a_wrong_dtype_to_decode_to_is_refused(models: Path) -> None:
    with pytest.raises(InputError, match="bfloat16 or float32"):
        fingerprint(models / "packed", decode="fp8", threads=1)
