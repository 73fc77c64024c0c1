"""The simulation of the timing rules sees what it plants."""

import numpy as np

from scripts.simulate_timing import (
    CURVES,
    NOISES,
    OFFSETS,
    Rule,
    draw_pool,
    false_share,
    run_rule,
    warm_up_rates,
)
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import LOOKS, Calibration

RULE = Rule(blocks=40, looks=LOOKS, calibration=Calibration())


def test_slower_arms_are_found_and_equal_ones_are_not() -> None:
    """On quiet visits, twenty tables each."""
    rng = np.random.default_rng(0)
    pool = draw_pool(rng, NOISES["quiet 0.5 %"], 40, 20)
    equal = run_rule(rng, pool, OFFSETS["0.4 %"], [1.0], RULE, 20)
    slower = run_rule(rng, pool, OFFSETS["0.4 %"], [1.1], RULE, 20)
    assert false_share(equal) == 0.0
    assert equal.share(RatioVerdict.EQUAL) == 1.0
    assert slower.share(RatioVerdict.SLOWER) == 1.0


def test_a_calibration_that_is_far_too_small_shows() -> None:
    """Processes that differ by 0.8 % with a calibration of zero variation: false verdicts or a noisy table."""
    rng = np.random.default_rng(0)
    pool = draw_pool(rng, NOISES["quiet 0.5 %"], 40, 20)
    sure = Rule(blocks=40, looks=LOOKS, calibration=Calibration(between_sd=1e-4, degrees=1e4))
    tally = run_rule(rng, pool, OFFSETS["0.8 %"], [1.0], sure, 60)
    assert false_share(tally) + tally.share(RatioVerdict.NOISY) > 0.3


def test_a_warm_up_that_ends_too_early_is_counted() -> None:
    """A drift over all visits is too early for every rule; an even arm for none."""
    rng = np.random.default_rng(0)
    assert warm_up_rates(rng, CURVES["10 % faster over 200 visits"], 0.003, 3)[0] == 1.0
    assert warm_up_rates(rng, CURVES["flat"], 0.003, 3) == (0.0, 0.0, 12.0)
