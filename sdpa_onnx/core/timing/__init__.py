"""The statistics of paired timing: ratio, interval, warm-up, stopping, and the verdict on a ratio.

`paired` is the only place where faster, slower, equal, inconclusive or noisy is decided.
Reads no clock and starts no process.
"""
