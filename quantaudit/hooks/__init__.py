"""Hooks: what runs inside somebody's trainer or engine; torch and the standard library only. Nothing is imported here.

`leaf` has the order-free digest from which fingerprints are made.
"""
