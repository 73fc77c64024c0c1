"""Find a failure of a runtime, reduce it to the smallest case that reproduces it, and pack it for a bug report.

A smaller case counts only if it fails in the same way. Does not fix or convert models.
"""
