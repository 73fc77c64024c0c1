"""BASE beside HEAD: one gate for agreement, graph, memory and time, and the history of many runs.

Records in, rows out; limits have names, units and reasons.
Reads no run folder and writes no text for people.
"""
