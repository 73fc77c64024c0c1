"""`bench`: build the requested arms, sizes and baseline, judge the outputs, and time one comparison per size set.

Starts no process itself.
"""
