"""Run one paired comparison of arms in worker processes: job files, schedule, records, FLOPs of a graph.

Uses the schedule of `measure` and the statistics of `core.timing`. Does not choose the arms: `workflows.bench` does.
"""
