"""A Qwen3-MoE of some thousand parameters, a byte-level tokenizer, fake quantization, and a served copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.utils import parametrize
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from quantaudit.core.manifest import Manifest
from quantaudit.core.scheme import Scheme
from quantaudit.hooks.exporter import export_shard
from quantaudit.hooks.held import hold
from quantaudit.hooks.merge import merge_shards
from quantaudit.numerics import QuantizedTensor, dequantize, fake_quantize, pack, quantize

EXPERTS = ("gate_up_proj", "down_proj")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes, with no merges and three special tokens."""
    specials = ["<pad>", "<bos>", "<eos>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> Qwen3MoeForCausalLM:
    """Returns a random model; expert matrices are 64 x 64 and 64 x 32."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen3MoeForCausalLM(config)


class _StraightThrough(torch.autograd.Function):
    """Fake-quantizes forward, passes gradients backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, master: Tensor, scheme: Scheme) -> Tensor:
        return fake_quantize(master, scheme)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class FakeQuantized(nn.Module):
    """A parametrization: what the model computes with is the fake-quantized master."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(self, master: Tensor) -> Tensor:
        value: Tensor = _StraightThrough.apply(master, self.scheme)  # type: ignore[no-untyped-call]
        return value


def fake_quantize_experts(model: nn.Module, scheme: Scheme) -> None:
    """Makes a model train through fake-quantized experts."""
    for experts in list(expert_modules(model)):
        for stored in EXPERTS:
            parametrize.register_parametrization(experts, stored, FakeQuantized(scheme))


def expert_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules that hold stacks of experts."""
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            yield module


class ServedCopy:
    """An engine: its experts are packed by a rule of its own at every sync, and decoded into the model that it runs.

    Args:
        model: A copy of the model, which becomes the engine's.
        scheme: Its rule.
    """

    def __init__(self, model: nn.Module, scheme: Scheme) -> None:
        self.model = model.eval()
        self.scheme = scheme
        self.packed: dict[str, QuantizedTensor] = {}

    @torch.no_grad()
    def sync(self, trained: nn.Module) -> None:
        """Loads the weights of a model whose experts are parametrized."""
        state = dict(trained.state_dict())
        for name, parameter in self.model.named_parameters():
            module, _, stored = name.rpartition(".")
            master = state.get(f"{module}.parametrizations.{stored}.original")
            if master is None:
                parameter.copy_(state[name])
                continue
            self.packed[name] = quantize(master, self.scheme)
            parameter.copy_(dequantize(self.packed[name]))

    def export_manifest(self) -> Manifest:
        """Returns what two expert-parallel workers of the engine export of its packed experts after a load."""
        shards = []
        for rank in range(2):
            weights = []
            for name, q in self.packed.items():
                half = slice(rank * q.shape[0] // 2, (rank + 1) * q.shape[0] // 2)
                fused = f"{name.replace('gate_up_proj', 'w13').replace('down_proj', 'w2')}_weight"
                codes = pack(q.codes[half], q.scheme.layout)
                for held in hold({fused: codes, f"{fused}_scale": q.scales[half]}):
                    assert held.shape is not None
                    shape = (q.shape[0], *held.shape[1:])
                    weights.append(replace(held, shape=shape, first=(half.start, 0, 0)))
            shards.append(export_shard(weights, worker=f"rank {rank}", decoded_to="float32"))
        return Manifest.from_json(merge_shards(shards))
