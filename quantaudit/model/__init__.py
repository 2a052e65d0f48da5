"""The Kimi-K3-style stack: KDA, gated MLA without positions, block attention residuals, Stable LatentMoE.

Tokens travel without padding, as `[N, ...]`; only the sequence mixers pad, internally. `Linear` and
`GroupedLinear` are the only modules an engine replaces, and `tap` is the only way to look inside.

Read `block.py` first, then `kda.py`, `delta.py`, `mla.py`, `moe.py`, `lm.py`.
"""
