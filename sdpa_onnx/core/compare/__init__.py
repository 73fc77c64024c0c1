"""Compares BASE with HEAD by gates on agreement, graph, memory and time, and evaluates the history of many runs.

Records in, gate records out; each limit has a name, a unit and a reason.
Reads no run folder and renders no report.
"""
