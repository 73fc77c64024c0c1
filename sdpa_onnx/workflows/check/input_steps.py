"""What a model is fed when it is judged: the ladder of logit spreads, the structural probes, or given arrays.

Draws nothing itself: `core.attention.inputs` and `core.attention.probes` draw for an attention, `feeds` for a module.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import split_heads
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import Session
from sdpa_onnx.workflows.check.feeds import Feeds, bare_case, draw_feeds, feeds_of
from sdpa_onnx.workflows.check.run_context import CheckOptions

__all__ = ["GIVEN", "InputStep", "ladder", "logit_spread", "probe_steps"]

GIVEN = "given"
_OWN = "the module's own spread"
# Queries looked at when the logit spread of a module's attention is measured.
_SPREAD_ROWS = 32
# Structure shows at small sizes: a prime above the usual tile of 64, so that a second, ragged tile is there.
_PROBE_LENGTH = 67


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStep:
    """One set of inputs of a model.

    Args:
        word: What it is, for the record: "spread 1", "probe poison", "given".
        spread: Standard deviation of the logits that was asked for, or -1.
        check: The check, with the sizes of this step.
        feeds: Arrays by graph input name.
    """

    word: str
    spread: float
    check: CheckOptions
    feeds: Feeds


def ladder(model: OnnxModel, session: Session, check: CheckOptions) -> Iterator[InputStep]:
    """Every step of the ladder; a module's inputs are widened until its attention has the spread asked for."""
    if check.inputs is not None:
        yield InputStep(word=GIVEN, spread=-1.0, check=check, feeds=dict(check.inputs))
        return
    if model.is_bare_attention:
        for spread in check.spreads:
            feeds = draw_feeds(model, check.sizes, spread=spread, seed=check.seed)
            yield InputStep(word=f"spread {spread:g}", spread=spread, check=check, feeds=feeds)
        return
    first = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed)
    if not model.sites:
        # Nothing to measure a spread on: wider inputs at least leave the flat part of the softmax.
        for spread in check.spreads:
            wide = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed, gain=max(1.0, spread))
            yield InputStep(word=_OWN, spread=-1.0, check=check, feeds=wide)
        return
    own = _measured_spread(model, {**model.constants(), **first, **session.run(first)})
    if not own > 0.0 or not any(array.dtype.kind not in "bui" for array in first.values()):
        yield InputStep(word=_OWN, spread=-1.0, check=check, feeds=first)
        return
    for spread in check.spreads:
        wide = draw_feeds(model, check.sizes, spread=spread, seed=check.seed, gain=(spread / own) ** 0.5)
        yield InputStep(word=f"spread {spread:g}", spread=spread, check=check, feeds=wide)


def probe_steps(model: OnnxModel, check: CheckOptions) -> Iterator[InputStep]:
    """Every structural probe that a bare attention can be asked, at lengths that need not be large."""
    sizes = {axis: min(size, _PROBE_LENGTH) for axis, size in check.sizes.items()}
    case = bare_case(model, sizes)
    if case is None:
        return
    small = replace(check, sizes=sizes)
    for probe in probes_for(case.spec):
        feeds = feeds_of(model, probe.draw(case, check.seed), sizes)
        yield InputStep(word=f"probe {probe.name}", spread=-1.0, check=small, feeds=feeds)


def logit_spread(site: AttentionSite, inputs: AttentionInputs) -> float:
    """Root mean square, over some queries, of the standard deviation of their scaled logits."""
    query, key, _ = split_heads(site.spec, inputs)
    if key.shape[2] < 2 or not query.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # of infinite inputs
        scores = site.spec.scale_value * (query[:, :1, :_SPREAD_ROWS] @ key[:, :1].transpose(0, 1, 3, 2))
        spread = float(np.sqrt(np.mean(np.var(scores, axis=-1))))
    return spread if np.isfinite(spread) else 0.0


def _measured_spread(model: OnnxModel, arrays: Mapping[str, NDArray[np.generic]]) -> float:
    """Median over the attentions of the standard deviation of a row of logits; 0 without any."""
    spreads = [
        logit_spread(site, AttentionInputs(**{name: arrays[value] for name, value in site.inputs.items()}))
        for site in model.sites
    ]
    return float(np.median(spreads)) if spreads else 0.0
