"""Certifies the quantizers of every installed library, and compiled code, against the schemes of the catalogue.

`python -m benchmarks.certificates [WORK] [--only PATTERN]` runs what is not yet in the work folder, one certificate a
file, and writes reports/certificates.json and .md. Read `cells` for what is certified, `table` for what is kept of it.
"""
