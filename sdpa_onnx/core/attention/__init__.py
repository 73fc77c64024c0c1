"""The definition of attention: spec and case, masks, inputs, the float64 oracle, probes, operation counts.

Every convention of the ONNX Attention operator is implemented here and nowhere else.
Decides no verdicts (see `core.judge`) and defines no records.
"""
