"""`export`: from a torch module or a spec to a proved ONNX file; also the folder `models/`.

Uses `convert` for forms and `verify` for the proof.
Traces nothing itself (that is `torch_export`).
"""
