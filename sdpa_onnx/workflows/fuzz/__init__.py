"""`fuzz`: run random valid cases on a runtime, judge each, and group the failures.

A case is drawn by number, so that it can be repeated.
Reduces nothing itself (that is `reduce`).
"""
