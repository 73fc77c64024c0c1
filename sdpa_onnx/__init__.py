"""sdpa_onnx: attention from PyTorch to ONNX, verified, timed and reported."""

__version__ = "0.1.0.dev0"
