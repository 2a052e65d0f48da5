"""The check of every training step: are the weights that the engine serves the ones that the trainer trains?

Read `checker` first (one check, top to bottom), then `sides` (what is compared), `fingerprints` (how), `diagnosis`
(which mismatch it is), `canary` (the execution), `gap` and `legs` (the effect, and how large it may be), and
`injections` (the mismatches that can be planted).
"""
