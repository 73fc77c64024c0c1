"""The statistics of paired timing: ratio, confidence interval, warm-up, stopping, and the verdict on a ratio.

Only `paired` decides faster, slower, equal, inconclusive or noisy.
Reads no clock and starts no process.
"""
