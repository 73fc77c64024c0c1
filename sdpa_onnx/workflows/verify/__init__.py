"""`verify` and `inspect`: judge every attention of a file, its outputs and its dynamic axes.

The order is: read, run, judge, try other sizes, plant faults.
Writes no model.
"""
