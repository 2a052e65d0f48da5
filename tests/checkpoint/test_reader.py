"""Tensors are read one at a time, exactly as stored, and refused if they are no finite weights."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantaudit.checkpoint.names import Role, dense_slots
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from tests.checkpoint.tiny import LAYER_2, TINY, WEIGHTS, edit_tensors, random_state

Tensors = dict[str, tuple[str, list[int], bytes]]
NORM = "language_model.model.norm.weight"
A_LOG = "language_model.model.layers.0.self_attn.A_log"
SLOTS = {slot.name: slot for slot in dense_slots(TINY)}


def changed(folder: Path, change: Callable[[Tensors], object]) -> Checkpoint:
    """Opens a checkpoint after a change to its tensors."""
    edit_tensors(folder / WEIGHTS, change)
    return open_checkpoint(folder)


def with_bytes(name: str, raw: bytes, at: int = 0) -> Callable[[Tensors], None]:
    """Returns a change that overwrites bytes of one tensor."""

    def change(tensors: Tensors) -> None:
        dtype, shape, old = tensors[name]
        tensors[name] = (dtype, shape, old[:at] + raw + old[at + len(raw) :])

    return change


def test_dense_tensors_are_read_as_written(written: Path) -> None:
    state = random_state()
    checkpoint = open_checkpoint(written / "sharded")
    for slot in SLOTS.values():
        read = checkpoint.read_slot(slot)
        assert read.dtype == state[slot.parameter].dtype and torch.equal(read, state[slot.parameter])


def test_unpacked_experts_are_stacked_as_written(written: Path) -> None:
    state = random_state()
    stack = open_checkpoint(written / "plain").expert_stack(2, Role.DOWN)
    assert isinstance(stack, torch.Tensor) and stack.dtype == torch.bfloat16
    assert torch.equal(stack, state["model.layers.2.block_sparse_moe.experts.w2.weight"])


@pytest.mark.parametrize("role", list(Role))
def test_packed_experts_keep_their_codes_and_scales(written: Path, role: Role) -> None:
    expected = quantize(
        random_state()[f"model.layers.4.block_sparse_moe.experts.{role}.weight"], get_scheme("mxfp4-even")
    )
    checkpoint = open_checkpoint(written / "packed")
    stack = checkpoint.expert_stack(4, role)
    assert isinstance(stack, QuantizedTensor) and stack.shape == expected.shape
    assert torch.equal(stack.codes, expected.codes) and torch.equal(stack.scales, expected.scales)
    assert torch.equal(dequantize(stack), checkpoint.decoded_stack(4, role))
    assert torch.equal(dequantize(stack), dequantize(expected))


def test_the_low_nibble_is_the_first_column(packed: Path) -> None:
    name = f"{LAYER_2}.0.w1"
    edit_tensors(packed / WEIGHTS, with_bytes(f"{name}.weight_packed", b"\x21\xf8"))
    edit_tensors(packed / WEIGHTS, with_bytes(f"{name}.weight_scale", bytes([128])))
    first = open_checkpoint(packed).decoded_stack(2, Role.GATE)[0, 0, :4]
    # Codes 1, 2, 8, 15 are 0.5, 1, -0 and -6, and the scale is 2.
    assert first.tolist() == [1.0, 2.0, 0.0, -12.0] and bool(first[2].signbit())


def test_every_code_and_scale_decodes_exactly(packed: Path) -> None:
    codes = bytes(low | (15 - low) << 4 for low in range(16))
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = [sign * m for sign in (1.0, -1.0) for m in magnitudes]
    expected = [v for low in range(16) for v in (values[low], values[15 - low])]
    for scale in (0, 1, 126, 127, 128, 200, 252):
        edit_tensors(packed / WEIGHTS, with_bytes(f"{LAYER_2}.1.w3.weight_packed", codes))
        edit_tensors(packed / WEIGHTS, with_bytes(f"{LAYER_2}.1.w3.weight_scale", bytes([scale])))
        row = open_checkpoint(packed).decoded_stack(2, Role.UP)[1, 0, :32]
        assert row.double().tolist() == [v * 2.0 ** (scale - 127) for v in expected]


def test_opening_reads_no_tensor(plain: Path) -> None:
    checkpoint = changed(plain, with_bytes(NORM, b"\xff\xff"))
    assert checkpoint.read("language_model.lm_head.weight").isfinite().all()
    with pytest.raises(InputError, match=f"{NORM} in .* holds 1 values that are NaN or infinite"):
        checkpoint.read(NORM)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_with_the_tensor(plain: Path, value: float) -> None:
    top = struct.pack("<f", value)
    for name, raw in ((NORM, top[2:]), (A_LOG, top)):
        checkpoint = changed(plain, with_bytes(name, raw))
        with pytest.raises(InputError, match=f"{name} in .* holds 1 values that are NaN or infinite"):
            checkpoint.read(name)


def test_an_expert_that_is_not_finite_is_refused(plain: Path) -> None:
    checkpoint = changed(plain, with_bytes(f"{LAYER_2}.5.w2.weight", b"\x80\x7f", at=100))
    for read in (checkpoint.expert_stack, checkpoint.decoded_stack):
        with pytest.raises(InputError, match=r"experts\.5\.w2\.weight in .* holds 1 values"):
            read(2, Role.DOWN)


def test_a_nan_scale_is_refused(packed: Path) -> None:
    checkpoint = changed(packed, with_bytes(f"{LAYER_2}.5.w2.weight_scale", b"\xff\xff"))
    with pytest.raises(InputError, match=r"experts\.5\.w2\.weight_packed has 2 scales of 255, which is NaN"):
        checkpoint.expert_stack(2, Role.DOWN)


@pytest.mark.parametrize(
    ("scale", "code", "is_good"), [(252, 0x7, True), (253, 0x5, True), (253, 0x6, False), (254, 0x7, False)]
)
def test_a_weight_beyond_bf16_is_refused(packed: Path, scale: int, code: int, is_good: bool) -> None:
    edit_tensors(packed / WEIGHTS, with_bytes(f"{LAYER_2}.0.w1.weight_packed", bytes([code]) + bytes(15)))
    checkpoint = changed(packed, with_bytes(f"{LAYER_2}.0.w1.weight_scale", bytes([scale])))
    if is_good:
        assert checkpoint.decoded_stack(2, Role.GATE).isfinite().all()
        return
    with pytest.raises(InputError, match="decoded to bf16, holds 1 values that are NaN or infinite"):
        checkpoint.expert_stack(2, Role.GATE)


@pytest.mark.parametrize("length", [5, 6, 32, 128])
def test_padding_is_narrowed_whatever_its_length(plain: Path, length: int) -> None:
    values = random_state()["model.layers.0.self_attn.A_log"]
    raw = values.numpy().tobytes() + bytes(4 * (length - 5))
    checkpoint = changed(plain, lambda tensors: tensors.update({A_LOG: ("F32", [length], raw)}))
    assert torch.equal(checkpoint.read_slot(SLOTS[A_LOG]), values)


def test_padding_that_is_not_zero_is_refused(plain: Path) -> None:
    checkpoint = changed(plain, with_bytes(A_LOG, struct.pack("<ff", 1.0, -2.0), at=4 * 30))
    with pytest.raises(InputError, match=f"{A_LOG} has 2 values other than zero behind its 5 heads"):
        checkpoint.read_slot(SLOTS[A_LOG])


def test_any_dense_tensor_may_be_stored_in_float32(plain: Path) -> None:
    values = random_state()["model.norm.weight"].float()
    checkpoint = changed(plain, lambda t: t.update({NORM: ("F32", [24], values.numpy().tobytes())}))
    read = checkpoint.read_slot(SLOTS[NORM])
    assert read.dtype == torch.float32 and torch.equal(read, values)


def test_a_stack_of_packed_and_unpacked_experts_is_decoded(packed: Path) -> None:
    def unpack_one(tensors: Tensors) -> None:
        del tensors[f"{LAYER_2}.3.w1.weight_packed"], tensors[f"{LAYER_2}.3.w1.weight_scale"]
        tensors[f"{LAYER_2}.3.w1.weight"] = ("BF16", [32, 64], b"\x80\x3f" * 2048)

    before = open_checkpoint(packed).decoded_stack(2, Role.GATE)
    stack = changed(packed, unpack_one).expert_stack(2, Role.GATE)
    assert isinstance(stack, torch.Tensor) and stack.dtype == torch.bfloat16
    before[3] = 1.0
    assert torch.equal(stack, before)


def test_one_expert_in_float32_widens_its_stack(plain: Path) -> None:
    raw = struct.pack("<f", 1 + 2**-20) * 2048
    stack = changed(plain, lambda t: t.update({f"{LAYER_2}.3.w1.weight": ("F32", [32, 64], raw)})).expert_stack(
        2, Role.GATE
    )
    assert isinstance(stack, torch.Tensor) and stack.dtype == torch.float32
    assert (stack[3] == 1 + 2**-20).all()
    assert torch.equal(stack[2].bfloat16(), random_state()["model.layers.2.block_sparse_moe.experts.w1.weight"][2])


def test_a_name_that_is_not_there_is_refused(written: Path) -> None:
    with pytest.raises(InputError, match=r"the tensor name 'lm_head\.weight'; expected a tensor of"):
        open_checkpoint(written / "plain").read("lm_head.weight")


def test_a_file_that_shrinks_after_opening_is_an_error(plain: Path) -> None:
    checkpoint = open_checkpoint(plain)
    (plain / WEIGHTS).write_bytes(b"")
    with pytest.raises(InputError, match="bytes early while it was read"):
        checkpoint.read(NORM)


def test_reading_a_stack_holds_one_expert_beside_it(written: Path) -> None:
    # Python's own allocations are the bytes read from the file; torch's are the stack.
    checkpoint = open_checkpoint(written / "packed")
    checkpoint.expert_stack(2, Role.GATE)
    tracemalloc.start()
    checkpoint.expert_stack(2, Role.GATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one_expert, io_buffer, objects = 32 * 64 // 2 + 32 * 2, 1 << 17, 1 << 15
    assert peak < 2 * one_expert + io_buffer + objects
