"""A reduced case that tells nothing of where it comes from: random numbers, generic names.

What stays is what makes the case: operators, attributes, shapes, element types, single
numbers and short lists of whole numbers (they are sizes and axes).
"""

from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, run_case
from sdpa_onnx.workflows.reduce.anonymous_graph import generic_model, random_like
from sdpa_onnx.workflows.reduce.expected import expected_outputs
from sdpa_onnx.workflows.reduce.graph import stop_of
from sdpa_onnx.workflows.reduce.node import cut_bad_node
from sdpa_onnx.workflows.reduce.search import ReducedCase, explained
from sdpa_onnx.workflows.reduce.trials import KeptFailure, failure_of

__all__ = ["AnonymousCase", "anonymise"]

# Draws of the random numbers that are tried before the failure is given up.
_DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousCase:
    """What came of it.

    Args:
        reduced: The case with random numbers and generic names.
        still_fails: Whether it still fails in the same way.
    """

    reduced: ReducedCase
    still_fails: bool


def anonymise(reduced: ReducedCase, runtime: Runtime, *, seed: int = 0, threads: int = 1) -> AnonymousCase:
    """Put random numbers and generic names in a reduced case, and see whether it still fails.

    Args:
        reduced: The case.
        runtime: Where it fails.
        seed: Of the random numbers; some following seeds are tried too.
        threads: Threads inside one operator.
    """
    first = _drawn(reduced, runtime, seed, threads)
    found = first
    for draw in range(1, _DRAWS):
        if found.still_fails:
            return found
        found = _drawn(reduced, runtime, seed + draw, threads)
    return found if found.still_fails else first


def _drawn(reduced: ReducedCase, runtime: Runtime, seed: int, threads: int) -> AnonymousCase:
    rng = np.random.default_rng(seed)
    model, names = generic_model(reduced.model, rng)
    feeds = {names[name]: random_like(array, rng) for name, array in reduced.feeds.items()}
    plain = replace(reduced, model=model, feeds=feeds, found_in="", dropped=(), case="", trial=None)
    if reduced.trial is None:
        return _judged_graph(plain, runtime, threads)
    site = model.sites[0]
    inputs = AttentionInputs(**{field: feeds[name] for field, name in site.inputs.items()})
    trial = replace(reduced.trial, graph=model, inputs=inputs)
    return _judged_case(plain, trial, runtime, reduced.failure)


def _judged_case(plain: ReducedCase, trial: CaseTrial, runtime: Runtime, failure: KeptFailure) -> AnonymousCase:
    with Sessions(runtime) as sessions:
        result = run_case(trial, sessions)
    still = failure.is_same(failure_of(result))
    judged = replace(
        plain,
        expected=expected_outputs(trial, result),
        message=explained(trial, result),
        agreement=result.agreement,
        precision=result.precision,
        case=trial.case.case_id,
        trial=trial,
    )
    return AnonymousCase(reduced=judged, still_fails=still)


def _judged_graph(plain: ReducedCase, runtime: Runtime, threads: int) -> AnonymousCase:
    if plain.kind is Conformity.WRONG:
        return _judged_part(plain, runtime, threads)
    stop = stop_of(plain.model, runtime, plain.feeds, threads=threads)
    if stop is None:
        return AnonymousCase(reduced=replace(plain, message="It runs."), still_fails=False)
    same = plain.failure.is_same(stop[0])
    return AnonymousCase(reduced=replace(plain, message=stop[1]), still_fails=same)


def _judged_part(plain: ReducedCase, runtime: Runtime, threads: int) -> AnonymousCase:
    """Nodes that are no attention, judged by the rule for nodes."""
    part = cut_bad_node(plain.model, runtime, plain.feeds, threads=threads)
    if part is None:
        return AnonymousCase(reduced=replace(plain, message="It is right.", expected={}), still_fails=False)
    judged = replace(
        plain,
        model=part.model,
        feeds=part.feeds,
        expected=part.expected,
        failure=part.failure,
        message=part.message,
    )
    return AnonymousCase(reduced=judged, still_fails=True)
