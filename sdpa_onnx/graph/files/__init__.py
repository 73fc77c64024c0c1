"""Model files: external data, large tensors, and atomic writes.

Data files are streamed. Knows no attention.
"""
