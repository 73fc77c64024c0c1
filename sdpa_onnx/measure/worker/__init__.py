"""What runs in a worker process: loads one arm of a comparison and calls it when it is asked to.

These files are started in other Python environments too, so they need Python 3.9, numpy and the runtime, and nothing
else of ours (`on_sdpa_onnx` is the one exception, and is only used in our own environment).
"""
