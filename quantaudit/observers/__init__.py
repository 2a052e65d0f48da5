"""Observers: each maps a paired forward of hi and lo to numbers per probe, per layer or per expert.

Read `paired.py` first: one forward of hi and one of lo serve every observer.
"""
