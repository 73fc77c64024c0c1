"""Read and write the list of known findings, `known.toml`, and sort the findings of a run into known and new.

Judges nothing.
"""
