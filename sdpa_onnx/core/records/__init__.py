"""What a run writes: one frozen record type for each kind, and the closed sets of words in them.

A field is defined here with its unit in its name; older records still decode.
No computation, no formatting, no files.
"""
