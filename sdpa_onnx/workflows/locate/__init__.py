"""Find the first node of a model that introduces an error.

Each node is judged on the inputs that it read, against float64.
Changes no model.
"""
