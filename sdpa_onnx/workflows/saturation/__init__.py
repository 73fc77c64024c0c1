"""`saturation`: weights from an exported graph on a runtime, gradients from torch, beside predictions.

The measures themselves are in `core.saturation`.
Draws no charts.
"""
