"""Cuts the committed part of the reference checkpoint out of the whole.

    python -m tests.model.make_oracle_fixture FOLDER

FOLDER holds a small random checkpoint in the released layout with `golden.safetensors`: what the released model code
computed from it, in fp32 and fp64. The whole is 12 MB; this keeps 2.4 MB, tensor for tensor, under the same names:

* the weights of layer 0 (KDA, dense), layer 1 (KDA, experts) and layer 3 (MLA, experts) with the experts that the
  first `NUM_ROUTED` tokens of the 17-token prompt meet; the attention residuals of layers 4 and 8, which open blocks;
  the tail;
* the embeddings of the prompts, and the first `NUM_LOGITS` rows of the head;
* what those parts take in and give out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WHOLE_LAYERS = (0, 1, 3)
SPARSE_LAYERS = (1, 3)
OPENING_LAYERS = (4, 8)
NUM_ROUTED = 4
NUM_LOGITS = 64
PROMPT = "len17"
FIXTURE = Path(__file__).parent / "data" / "oracle_part.safetensors"


class Source(NamedTuple):
    """What the folder holds."""

    weights: dict[str, Tensor]
    golden: dict[str, Tensor]
    explanation: dict[str, object]
    config: str


def read_source(folder: Path) -> Source:
    """Returns every tensor of the folder, its explanation and its configuration."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    weights: dict[str, Tensor] = {}
    for shard in sorted(set(index.values())):
        weights |= read_tensors(folder / shard)
    explanation = json.loads((folder / "golden.json").read_text())
    return Source(
        weights, read_tensors(folder / "golden.safetensors"), explanation, (folder / "config.json").read_text()
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns every tensor of one safetensors file."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)


def is_kept(name: str, met: dict[int, set[int]]) -> bool:
    """Returns whether a weight belongs to the part; `met` has the experts to keep, by layer."""
    parts = name.removeprefix("language_model.model.").split(".")
    if parts[0] != "layers":
        return parts[0] in ("norm", "output_attn_res_norm", "output_attn_res_proj")
    layer = int(parts[1])
    if "experts" in parts:
        return layer in SPARSE_LAYERS and int(parts[parts.index("experts") + 1]) in met[layer]
    is_residual = "_res_" in parts[2]
    return layer in WHOLE_LAYERS or (layer in OPENING_LAYERS and is_residual)


def golden_names() -> list[str]:
    """Returns the names of the reference values that the part's tests use."""
    at = f"{PROMPT}.layer"
    names = [f"{at}.{layer}.{what}" for layer in WHOLE_LAYERS for what in ("attn_in_mixed", "attn_out")]
    names += [f"{at}.{layer}.{what}" for layer in WHOLE_LAYERS for what in ("mlp_in_mixed", "mlp_out")]
    names += [f"{at}.{layer}.{what}" for layer in SPARSE_LAYERS for what in ("router_ids", "router_weights")]
    names += [f"f64.{at}.{layer}.router_weights" for layer in SPARSE_LAYERS]
    names += [f"f64.{at}.{layer}.prefix" for layer in (0, 1, 2, 3, 7, 8)]
    names += [
        f"{at}.{layer}.{what}" for layer in OPENING_LAYERS for what in ("attn_in_mixed", "attn_out", "mlp_in_mixed")
    ]
    names += [f"{PROMPT}.final.{what}" for what in ("bank", "attn_res_out", "normed")]
    state = "decode.after_prefill.layer.0"
    return [*names, f"{state}.kda_state_kv", *(f"{state}.conv_{stream}" for stream in "qkv")]


def cut(source: Source) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors and the metadata of the part."""
    met = {
        layer: set(source.golden[f"{PROMPT}.layer.{layer}.router_ids"][:NUM_ROUTED].unique().tolist())
        for layer in SPARSE_LAYERS
    }
    part = {name: tensor for name, tensor in source.weights.items() if is_kept(name, met)}
    part |= {name: source.golden[name] for name in golden_names()}
    part["head"] = source.weights["language_model.lm_head.weight"][:NUM_LOGITS].clone()
    part["f64.head_logits"] = source.golden[f"f64.{PROMPT}.logits"][:, :NUM_LOGITS].clone()
    tokens, decode = source.explanation["tokens"], source.explanation["decode"]
    assert isinstance(tokens, dict) and isinstance(decode, dict)
    embeddings = source.weights["language_model.model.embed_tokens.weight"]
    part["embedded.prompt"] = embeddings[torch.tensor(tokens[PROMPT])]
    part["embedded.prefill"] = embeddings[torch.tensor(tokens["decode"][: decode["prefill"]])]
    described = {
        "config": json.loads(source.config),
        "provenance": source.explanation["provenance"],
        "made_by": "python -m tests.model.make_oracle_fixture",
    }
    # One key, since the order of several is not reproducible.
    return part, {"source": json.dumps(described, sort_keys=True)}


def main() -> None:
    """Runs the program from the command line."""
    parser = argparse.ArgumentParser(description="Cut the committed part of the reference checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=FIXTURE)
    arguments = parser.parse_args()
    tensors, metadata = cut(read_source(arguments.folder))
    save_file(tensors, arguments.out, metadata)


if __name__ == "__main__":
    main()
