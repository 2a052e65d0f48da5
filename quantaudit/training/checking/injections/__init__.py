"""Mismatches that can be planted in a run, `NAME@STEP[:key=value,...]`: those of `identity`, and those of a loop.

Read `points` first (what an injection is made of), then `registry` (all of them, by name); each other file holds one
group by the place in the loop at which it acts.
"""
