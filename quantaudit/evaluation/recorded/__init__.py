"""Recorded results: two files of per-item numbers get the same paired verdict as a run. No model is run here.

Read `judge.py` first, then `pairing.py`. `opening.py` tells formats apart by content; there is one file a format.
"""
