"""What the scale does to the softmax: measures of rows, exact predictions, and the claims they test.

Pure functions of logits and sizes.
Runs no model.
"""
