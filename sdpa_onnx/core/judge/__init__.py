"""Decides whether an output agrees with the oracle: proven error bound, sigma, score tests, and the verdict.

Takes arrays and returns an `Agreement`; no other module decides an agreement verdict.
Names no cause (see `core.faults`) and reads no records.
"""
