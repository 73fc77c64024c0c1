"""Decides whether an output agrees with the oracle: proven error bound, sigma, score tests, and the verdict.

Takes arrays and returns an `Agreement`; outputs of whole modules are judged in `workflows`.
Names no cause (see `core.faults`) and reads no records.
"""
