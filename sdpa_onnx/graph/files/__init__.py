"""Model files: external data, large tensors, and writing a file whole or not at all.

Streams what does not fit in memory.
Knows no attention.
"""
