"""`saturation`: measure weights of an exported graph and gradients of torch, and compare both with predictions.

Does not define the measures (`core.saturation` does) and draws no charts.
"""
