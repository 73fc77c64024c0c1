"""Reports of timings: tables, charts, findings and alarms of paired comparisons.

Repeats the verdicts of `core.timing`; never forms one for a pair that was timed together.
No agreement and no saturation.
"""
