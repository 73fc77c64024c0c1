"""The records of a run: one frozen record type for each kind, and the enums in them.

Each field has its unit in its name; older records still decode. No computation, no formatting, no files.
"""
