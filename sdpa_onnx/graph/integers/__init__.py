"""What the integer inputs of a graph mean: lengths, indices, positions, masks, and which numbers are legal.

Draws nothing; `workflows.check.integer_draws` does.
"""
