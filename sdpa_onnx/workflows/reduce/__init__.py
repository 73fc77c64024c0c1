"""`reduce`: find what a runtime computes wrongly, make the case as small as possible, and pack it for a bug report.

A smaller case counts only if it fails in the same way.
Fixes and converts nothing.
"""
