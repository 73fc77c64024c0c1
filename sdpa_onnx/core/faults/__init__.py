"""Known ways to be wrong: planted faults, other readings of the operator, and the diagnosis that names them.

Explains a wrong output and produces wrong outputs for tests of the judge.
Decides no verdict.
"""
