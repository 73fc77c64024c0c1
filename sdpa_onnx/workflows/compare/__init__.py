"""`compare` of models and environments: judge them against the oracle, then time them interleaved.

Does not compare stored runs (`core.compare` does) and writes no report.
"""
