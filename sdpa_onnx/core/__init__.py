"""The pure core: computes arrays and records from arrays.

One folder per job: attention, judge, faults, timing, saturation, compare, records.
Uses no files, clock, unseeded randomness, printing, torch or onnx.
"""
