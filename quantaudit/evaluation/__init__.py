"""The audit itself: the paired pass, its controls, the clauses and the verdict.

Read `runner.py` from top to bottom, then `measure.py`, `clauses.py` and `admission.py`.
"""
