"""Engines: what opens a realization and runs it. `native` runs our own stack."""
