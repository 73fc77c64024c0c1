"""Export PyTorch modules and attention specs to ONNX. Importing this package does not load torch."""
