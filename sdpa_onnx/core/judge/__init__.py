"""Whether an output agrees with the oracle: proven bound, sigma, score tests, and the verdict.

Takes arrays and returns an `Agreement`; the only place where an agreement verdict is decided.
Names no cause (that is `core.faults`) and reads no records.
"""
