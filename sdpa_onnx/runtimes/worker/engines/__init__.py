"""One file for each runtime: how it loads a model, runs it, and reports what ran.

A file needs numpy and its runtime only, and Python 3.9, so that it works in any environment; importing it loads
numpy at most. `sdpa_onnx.runtimes.engine` states what an engine is.
"""
