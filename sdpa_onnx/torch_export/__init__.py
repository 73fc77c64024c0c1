"""From PyTorch to ONNX: our modules, the exporter, the parser of targets; importing it loads no torch."""
