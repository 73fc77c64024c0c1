"""What runs in a worker process: one service, which times arms, runs sessions, or calls a function of ours.

These files are started in other Python environments too, so they need Python 3.9, numpy and the runtime, and nothing
else of ours. Only the services `on_sdpa_onnx`, `sessions` and `function` import our package, in our own environment.
"""
