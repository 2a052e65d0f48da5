"""Backends: the quantizers of other libraries, one file a library, behind one protocol. Read `protocol` first."""
