"""Stands for a package whose own dependency is missing."""

raise ImportError("libdemo.so.2: cannot open shared object file")
