"""Locate the first node of a model that a runtime computes wrongly.

Each node is judged on the inputs that it read, against float64. Does not change the model.
"""
