"""How much processes of one and the same model differ, from visits of several of them at a time.

Takes one number a visit; measures nothing and keeps nothing.
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
    """The difference between processes that run the same.

    Args:
        between_sd: Standard deviation of the log ratio of one pair of processes, sampling error taken out; 0 where
            the sampling error alone explains what was seen.
        degrees: Degrees of freedom that this figure is worth; 0 where it is 0.
        sampling_sd: Root mean square of the sampling error of a pair.
    """

    between_sd: float
    degrees: float
    sampling_sd: float


def process_spread(launches: Sequence[Float64], *, seed: int = 0) -> ProcessSpread:
    """Estimate the difference between processes of the same model.

    For every pair (i, j) of one launch, d_ij is the median over blocks of the log ratio and se_ij its standard error.
    As the true log ratio is 0, E[d_ij^2] = tau^2 + se_ij^2, so that

        tau^2 = mean d_ij^2 - mean se_ij^2.

    P processes of one launch are P - 1 independent differences. What was subtracted makes the figure less certain:
    its degrees are (tau^2 / mean d_ij^2)^2 times those of the mean.

    Args:
        launches: Each (processes, blocks), one statistic a visit, seconds; at least two processes.
        seed: Of the bootstrap behind the standard errors.

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
