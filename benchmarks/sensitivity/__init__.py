"""Plants every mismatch many times in a small loop, with random options, and counts what the check of each step finds.

`python -m benchmarks.sensitivity [--runs N] [--clean-steps N] [--output FOLDER]` writes sensitivity.json, .md and
.html. Read `loop` for what runs, `grid` for what is planted, `table` for what is counted.
"""
