"""Read onnxruntime's own attention operators (com.microsoft) into the canonical form; one module per operator.

Other dialects are read in `graph.lift`. The readers share `node`.
"""
