"""The pure core: arrays in, arrays and records out; no files, clock, torch or onnx."""
