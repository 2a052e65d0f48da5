"""Reads and writes Kimi K3 checkpoints, and says which experts really are stored in low precision.

Every file is hostile: headers, indices and configurations are parsed strictly and checked against each other
before a byte of a tensor is read, and nothing is ever unpickled. `header`, `index`, `config_json`, `names`, `packed`,
`layout` and `precision` need no torch; `reader`, `load`, `digest` and `writer` do. Nothing is imported here.

Read `names.py` first, then `packed.py`, `header.py`, `index.py`, `layout.py`, `reader.py`, `writer.py`.
"""
