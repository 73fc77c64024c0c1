"""Anonymise a reduced case: replace its numbers with random ones and its names with generic ones.

Does not change what defines the case: operators, attributes, shapes, element types, single
numbers and short lists of integers, which are sizes and axes.
"""

from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, run_case
from sdpa_onnx.workflows.reduce.anonymous_graph import generic_model, random_like
from sdpa_onnx.workflows.reduce.expected import expected_outputs
from sdpa_onnx.workflows.reduce.graph import run_failure
from sdpa_onnx.workflows.reduce.node import cut_bad_node
from sdpa_onnx.workflows.reduce.search import ReducedCase, explained
from sdpa_onnx.workflows.reduce.trials import KeptFailure, failure_of

__all__ = ["AnonymousCase", "anonymise"]

# Number of random draws before the anonymous case counts as one that no longer fails.
_DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousCase:
    """The result of `anonymise`.

    Args:
        reduced: The case with random numbers and generic names.
        still_fails: Whether it still fails in the same way.
    """

    reduced: ReducedCase
    still_fails: bool


def anonymise(reduced: ReducedCase, runtime: Runtime, *, seed: int = 0, threads: int = 1) -> AnonymousCase:
    """Put random numbers and generic names in a reduced case, and check whether it still fails.

    Args:
        reduced: The case.
        runtime: The runtime on which it fails.
        seed: Seed of the random numbers. If the case no longer fails, the next seeds are tried too.
        threads: Threads inside one operator.
    """
    first = _anonymous_draw(reduced, runtime, seed, threads)
    candidate = first
    for draw in range(1, _DRAWS):
        if candidate.still_fails:
            return candidate
        candidate = _anonymous_draw(reduced, runtime, seed + draw, threads)
    return candidate if candidate.still_fails else first


def _anonymous_draw(reduced: ReducedCase, runtime: Runtime, seed: int, threads: int) -> AnonymousCase:
    rng = np.random.default_rng(seed)
    model, names = generic_model(reduced.model, rng)
    feeds = {names[name]: random_like(array, rng) for name, array in reduced.feeds.items()}
    plain = replace(reduced, model=model, feeds=feeds, found_in="", dropped=(), case="", trial=None)
    if reduced.trial is None:
        return _judge_graph(plain, runtime, threads)
    site = model.sites[0]
    inputs = site.arrays_in(feeds)
    trial = replace(reduced.trial, graph=model, inputs=inputs)
    return _judge_attention(plain, trial, runtime, reduced.failure)


def _judge_attention(plain: ReducedCase, trial: CaseTrial, runtime: Runtime, failure: KeptFailure) -> AnonymousCase:
    with Sessions(runtime) as sessions:
        result = run_case(trial, sessions)
    now = failure_of(result)
    judged = replace(
        plain,
        expected=expected_outputs(trial, result),
        failure=now or failure,
        message=explained(trial, result),
        agreement=result.agreement,
        precision=result.precision,
        case=trial.case.case_id,
        trial=trial,
    )
    return AnonymousCase(reduced=judged, still_fails=failure.is_same(now))


def _judge_graph(plain: ReducedCase, runtime: Runtime, threads: int) -> AnonymousCase:
    if plain.kind.disagrees:
        return _judge_nodes(plain, runtime, threads)
    stop = run_failure(plain.model, runtime, plain.feeds, threads=threads)
    if stop is None:
        return AnonymousCase(reduced=replace(plain, message="It runs."), still_fails=False)
    failure, message = stop
    same = plain.failure.is_same(failure)
    return AnonymousCase(reduced=replace(plain, message=message), still_fails=same)


def _judge_nodes(plain: ReducedCase, runtime: Runtime, threads: int) -> AnonymousCase:
    """Judge nodes that are not attention by the error limit for single nodes."""
    part = cut_bad_node(plain.model, runtime, plain.feeds, threads=threads)
    if part is None:
        return AnonymousCase(reduced=replace(plain, message="Every node is right.", expected={}), still_fails=False)
    judged = replace(
        plain,
        model=part.model,
        feeds=part.feeds,
        expected=part.expected,
        failure=part.failure,
        message=part.message,
    )
    return AnonymousCase(reduced=judged, still_fails=True)
