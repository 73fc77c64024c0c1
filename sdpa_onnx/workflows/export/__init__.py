"""`export`: write a torch module or a spec to a verified ONNX file; also builds the folder `models/`.

Uses `convert` for forms and `verify` for the proof. Traces nothing itself: `torch_export` does.
"""
