"""Runs the quantizers of every installed library against the catalogue and, for MXFP4, against each other.

`python -m benchmarks.conformance [--rows N] [--output FOLDER]` writes conformance.json, .md and .html. Read `data` for
what is quantized, `sides` for who quantizes it, `measure` for what is counted, `published` for the figures held
against it.
"""
