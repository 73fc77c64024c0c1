"""What attention is: the spec and the case, masks, inputs, the float64 oracle, probes, cost.

Every convention of the ONNX Attention operator is written out here, and nowhere else.
No verdicts (those are `core.judge`) and no records.
"""
