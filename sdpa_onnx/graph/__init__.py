"""Read, analyse and rewrite ONNX graphs: the model container, its attentions and its metadata.

`lift` reads attention from any dialect, `lower` writes it in a form, `files` loads and saves.
Runs no model and imports no torch.
"""
