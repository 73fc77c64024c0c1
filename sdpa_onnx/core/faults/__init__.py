"""Known faults of attention: planted faults, alternative readings of the operator, and their diagnosis.

Explains wrong outputs, and produces wrong outputs to test the checks.
Decides no verdict.
"""
