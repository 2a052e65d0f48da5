"""Simulates every decision rule at its margin and away from it, and says where it keeps its promise.

`python -m benchmarks.calibration [--replicates N] [--output FOLDER]` writes calibration.json, .md and .html. Read
`grid` for what is simulated, `rules` for how a rule is asked, `table` for what is reported.
"""
