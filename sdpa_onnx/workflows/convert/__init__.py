"""`convert`: write every attention of a file in another form, and prove the result before it is saved.

What was proved is, to the byte, what is written.
Reads dialects through `graph.lift` only.
"""
