"""Runs the quantizers of every installed library against the catalogue, and those of a family against each other.

`python -m benchmarks.conformance [--rows N] [--draws N] [--output FOLDER]` writes conformance.json, .md and .html. Read
`data` for what is quantized, `sides` for who quantizes it, `families` for what can be compared, `measure` for what is
counted, `figures` for the published figures, `observe` and `published` for how they are held against what is found.
"""
