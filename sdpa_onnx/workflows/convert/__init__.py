"""`convert`: rewrite every attention of a file in another form and verify the result before it is saved.

The file that is written is byte for byte the one that was verified. Does not parse dialects itself: `graph.lift` does.
"""
