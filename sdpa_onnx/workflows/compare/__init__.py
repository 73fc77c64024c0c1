"""`compare` of models and environments: judged by the oracle, then timed interleaved.

Stored runs are compared by `core.compare` alone.
Writes no report.
"""
