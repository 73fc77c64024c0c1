"""Export PyTorch modules and attention specs to ONNX. Importing this package does not load torch.

Traces with torch.export, taps each attention, and cleans the graph that torch.onnx writes.
Runs no runtime; the proof of an export is in `workflows.export`.
"""
