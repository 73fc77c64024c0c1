"""ONNX graphs in, ONNX graphs out: the model container, its attentions, its metadata."""
