"""Read, analyse and rewrite ONNX graphs: the model container, its attentions and its metadata. Runs no model."""
