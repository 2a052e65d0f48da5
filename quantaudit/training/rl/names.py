"""The names of one weight: what the trainer calls it, and what the engine does.

    trainer                                       engine
    layers.3.experts.w1, layers.3.experts.w3      layers.3.moe.experts.w13, two halves
    layers.3.experts.w2                           layers.3.moe.experts.w2
    model.layers.3.self_attn.q_proj.weight        layers.3.attn.q_proj.weight
    lm_head.weight                                head.weight

Gate and up fuse where both are quantized alike; where they are not, each keeps a stack of its own.
"""

from __future__ import annotations

GATE, UP, DOWN = "w1", "w3", "w2"
FUSED = "w13"

_DENSE = (("model.layers.", "layers."), (".self_attn.", ".attn."), (".block_sparse_moe.", ".moe."))
_TOP = {
    "lm_head.weight": "head.weight",
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "model.output_attn_res_norm.weight": "output_res_norm.weight",
    "model.output_attn_res_proj.weight": "output_res_proj.weight",
}
_BOTTOM = {engine: trainer for trainer, engine in _TOP.items()}


def engine_name(parameter: str) -> str:
    """Returns the engine's name of a dense parameter."""
    if parameter in _TOP:
        return _TOP[parameter]
    for trainer, engine in _DENSE:
        parameter = parameter.replace(trainer, engine)
    return parameter


def trainer_name(name: str) -> str:
    """Returns the trainer's name of a dense parameter: the inverse of `engine_name`."""
    if name in _BOTTOM:
        return _BOTTOM[name]
    for trainer, engine in reversed(_DENSE):
        name = name.replace(engine, trainer)
    return name


def stack_name(module: str, *, is_fused: bool) -> str:
    """Returns the engine's name of an expert stack, from its module name."""
    layer, role = module.split(".experts.")
    return f"{layer}.moe.experts.{FUSED if is_fused and role in (GATE, UP) else role}"


def module_of(name: str, part: str) -> str:
    """Returns the module name of one part of an engine's stack."""
    return f"{name.split('.moe.')[0]}.experts.{part}"


def other_name(name: str, part: str) -> str:
    """Returns the name that this part has where it is fused otherwise: alone if `name` is fused, else fused."""
    module = module_of(name, part)
    alone = stack_name(module, is_fused=False)
    return alone if name != alone else f"{name.rpartition('.')[0]}.{FUSED}"


def role_of(module: str) -> str:
    """Returns `w1`, `w2` or `w3`."""
    return module.rpartition(".")[2]
