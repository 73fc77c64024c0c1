"""Estimates the variation between processes of the same model from interleaved visits of several processes.

The input is one number per visit; measures nothing and stores nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.timing.paired import launch_pair

__all__ = ["ProcessSpread", "process_spread"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpread:
    """Variation between processes of the same model.

    Args:
        between_sd: Standard deviation of the log ratio of one pair of processes, without sampling error; 0 if
            the sampling error alone explains the observed differences.
        degrees: Degrees of freedom of this estimate; 0 if it is 0.
        sampling_sd: Root mean square of the sampling error of a pair.
    """

    between_sd: float
    degrees: float
    sampling_sd: float


def process_spread(launches: Sequence[Float64], *, seed: int = 0) -> ProcessSpread:
    """Estimate the variation between processes of the same model.

    For every pair (i, j) of one launch, d_ij is the median over blocks of the log ratio and se_ij its standard error.
    Because the true log ratio is 0, E[d_ij^2] = tau^2 + se_ij^2 and

        tau^2 = mean d_ij^2 - mean se_ij^2.

    P processes of one launch have P - 1 independent differences. The subtraction makes the estimate less certain:
    its degrees of freedom are (tau^2 / mean d_ij^2)^2 times those of the mean.

    Args:
        launches: Each (processes, blocks), one statistic per visit, seconds; at least two processes.
        seed: Seed of the bootstrap of the standard errors.

    Source:
        Method of moments for a variance component (DerSimonian and Laird 1986, with the mean known to be 0); the mean
        over all pairs is twice the sample variance of the processes. Degrees: Satterthwaite 1946. METHOD B.3.
    """
    pairs = [
        launch_pair(times[one], times[other], seed=seed)
        for times in launches
        for one, other in combinations(range(len(times)), 2)
    ]
    seen = float(np.mean([pair.log_ratio**2 for pair in pairs]))
    sampling = float(np.mean([pair.standard_error**2 for pair in pairs]))
    between = max(seen - sampling, 0.0)
    independent = sum(len(times) - 1 for times in launches)
    degrees = independent * (between / seen) ** 2 if seen else 0.0
    return ProcessSpread(between_sd=math.sqrt(between), degrees=degrees, sampling_sd=math.sqrt(sampling))
