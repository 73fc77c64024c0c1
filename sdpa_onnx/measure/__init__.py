"""Timing: the schedule of a comparison, its samples, and the load, caches and ceilings of the machine.

Workers are started through `runtimes`; statistics and verdicts are in `core.timing`.
Knows no attention and exports nothing.
"""
