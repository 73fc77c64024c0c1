"""onnxruntime's own attention operators read into the canonical form, one operator a file.

`node` is what the readers share.
Other dialects are in `graph.lift`.
"""
