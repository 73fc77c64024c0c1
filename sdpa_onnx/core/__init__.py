"""The pure core: arrays in, arrays and records out.

One folder for each question: attention, judge, faults, timing, saturation, compare, records.
No files, clock, randomness without a seed, printing, torch or onnx.
"""
