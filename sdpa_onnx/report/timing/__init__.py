"""Reports of timings: tables, charts, findings and alarms of paired comparisons.

It prints the verdicts of `core.timing`, and forms none for a pair that was timed together.
Agreement and saturation have their own folders.
"""
