"""Identity: whether two quantizers are one function, whether two checkpoints hold one model, and where they part.

`certify` compares functions, `compare` and `fingerprint` compare stored tensors, `identify` names the scheme that made
a tensor, and `mismatches` names what else can have happened to it.
"""
