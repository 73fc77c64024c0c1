"""The difference between processes, from visits whose spread is known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.timing.process_spread import process_spread

_BLOCKS = 60


def _launches(
    rng: np.random.Generator, *, process_sd: float, visit_sd: float, launches: int = 10, processes: int = 6
) -> list[NDArray[np.float64]]:
    """Visits of 1 ms; each process has a factor of its own, each block one that all share."""
    found = []
    for _ in range(launches):
        process = rng.normal(0.0, process_sd, (processes, 1))
        block = rng.normal(0.0, 0.05, (1, _BLOCKS))
        visit = rng.normal(0.0, visit_sd, (processes, _BLOCKS))
        found.append(1e-3 * np.exp(process + block + visit))
    return found


def test_known_spread_is_found() -> None:
    """Processes 0.4 % apart are pairs 0.57 % apart, though a visit is off by 1 %: mean over 20 estimates."""
    rng = np.random.default_rng(1)
    found = [process_spread(_launches(rng, process_sd=0.004, visit_sd=0.01, launches=4)) for _ in range(20)]
    variance = np.mean([one.between_sd**2 for one in found])
    assert math.sqrt(variance) == pytest.approx(math.sqrt(2) * 0.004, rel=0.1)


def test_sampling_error_is_taken_out() -> None:
    """Processes that do not differ leave a small part of the sampling error, worth next to nothing."""
    found = process_spread(_launches(np.random.default_rng(2), process_sd=0.0, visit_sd=0.01))
    assert found.between_sd < 0.5 * found.sampling_sd
    assert found.degrees < 3


def test_degrees_are_those_of_the_processes() -> None:
    """Without sampling error six processes of ten launches are 50 degrees of freedom; blocks do not count."""
    found = process_spread(_launches(np.random.default_rng(3), process_sd=0.004, visit_sd=0.0))
    assert found.degrees == pytest.approx(50)
    assert found.sampling_sd == pytest.approx(0.0, abs=1e-12)


def test_noise_of_all_processes_at_once_is_no_difference() -> None:
    """A slow block does not change the estimate."""
    calm = _launches(np.random.default_rng(4), process_sd=0.004, visit_sd=0.002)
    shaken = [times * np.exp(np.linspace(0.0, 2.0, _BLOCKS)) for times in calm]
    assert process_spread(shaken).between_sd == pytest.approx(process_spread(calm).between_sd)


def test_processes_that_are_the_same_to_the_bit() -> None:
    """Equal times are no spread, and no division by zero."""
    found = process_spread([np.full((3, 12), 1e-3)])
    assert (found.between_sd, found.degrees, found.sampling_sd) == (0.0, 0.0, 0.0)
