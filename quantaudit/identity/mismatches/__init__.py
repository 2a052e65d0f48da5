"""Structural mismatches: the ways in which equal schemes still give unequal weights, one file each.

Read `protocol` first, then `registry`. Every file holds `ABOUT`, `apply`, which does to a trainer's layer what the
fault does, and `recognise`, which tells from both sides whether this is what happened.
"""
