"""The checkpoint written by the released code in the real layout is read whole, where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quantaudit.checkpoint.digest import digest_checkpoint, digest_parameters
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.checkpoint.writer import write_checkpoint

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "k3_oracle" / "a_nano"

pytestmark = pytest.mark.skipif(
    not ORACLE.is_dir(), reason="the checkpoint of the released code is not in the repository, nor beside it"
)


@pytest.fixture(scope="module")
def oracle() -> Checkpoint:
    """The opened checkpoint."""
    return open_checkpoint(ORACLE)


def test_it_is_the_nano_configuration_in_two_shards(oracle: Checkpoint) -> None:
    config = oracle.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_experts, config.vocab_size) == (9, 128, 32, 512)
    assert config.linear_attn_config.full_attn_layers == (4, 8, 9)
    assert len(oracle.index.files) == 2 and len(oracle.index.tensors) == 1002
    assert oracle.precision.as_declared and oracle.precision.num_matrices == 8 * 32 * 3
    assert oracle.precision.bits_per_weight == 16.0


def test_every_parameter_is_the_stored_tensor(oracle: Checkpoint) -> None:
    stored = {name: tensor for path in oracle.index.files for name, tensor in load_file(path).items()}
    for parameter, value in load_model(oracle).named_parameters():
        if ".experts." in parameter:
            before, after = parameter.split(".experts.")
            names = [f"language_model.{before}.experts.{e}.{after}" for e in range(32)]
            expected = torch.stack([stored.pop(name) for name in names])
        else:
            expected = stored.pop(f"language_model.{parameter}")
        if parameter.endswith("A_log"):
            assert expected.shape == (32,) and not expected[6:].any()
            expected = expected[:6]
        assert value.dtype == expected.dtype and torch.equal(value, expected), parameter
    assert not stored


def test_written_again_it_has_the_same_files_but_for_their_names(oracle: Checkpoint, tmp_path: Path) -> None:
    model = load_model(oracle)
    write_checkpoint(tmp_path / "c", oracle.config, model.named_parameters(), scheme=None, shard_bytes=None)
    again = open_checkpoint(tmp_path / "c")
    assert again.config == oracle.config
    for name in oracle.index.tensors:
        assert torch.equal(again.read(name), oracle.read(name)), name
    assert (
        digest_checkpoint(again)
        == digest_checkpoint(oracle)
        == digest_parameters(model.named_parameters(), oracle.config)
    )
