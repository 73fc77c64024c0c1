"""Known findings: the file that lists them, and which findings of a run it does not list.

Reads and writes `known.toml`.
Judges nothing.
"""
