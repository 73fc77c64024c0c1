"""One paired comparison of arms in worker processes: job files, schedule, records, work of a graph.

Uses the schedule of `measure` and the statistics of `core.timing`.
Does not choose the arms (that is `workflows.bench`).
"""
