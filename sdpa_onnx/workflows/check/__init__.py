"""One check of one model on one runtime: its inputs, the attentions in it, and the records that result.

What `verify`, `convert`, `fuzz` and `reduce` share.
Chooses no sizes and no runtimes for a user.
"""
