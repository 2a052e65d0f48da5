"""A reinforcement-learning loop with two sides: a trainer with masters, and a rollout engine in a process of its own.

Read `loop.py` first (one step, top to bottom), then `sync.py` (how weights travel), `derived.py` (what the engine makes
of them), `engine.py` (what it does with them), `policy.py` and `objective.py` (how the trainer learns), and `faults.py`
(where mismatches are planted).
"""
