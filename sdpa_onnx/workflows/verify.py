"""Verify a model: run it on a runtime, judge every attention inside and the module's end.

Each attention is judged on its own tapped inputs, so that an error is named
where it is made. Timing is `bench`'s, dynamic axes are `dynamic_axes`'.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.agreement import Agreement, Expectation, expect, judge
from sdpa_onnx.core.inputs import AttentionInputs
from sdpa_onnx.core.oracle import split_heads
from sdpa_onnx.core.precision import find_precision
from sdpa_onnx.core.records import AgreementRecord, Verdict
from sdpa_onnx.errors import ExportError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported, get_runtime
from sdpa_onnx.workflows.checked import Check, Checked, end_sizes, site_sizes, unsupported_record
from sdpa_onnx.workflows.feeds import Feeds, draw_feeds, dtype_of, resolve_shape
from sdpa_onnx.workflows.module_end import ModuleTruth

__all__ = ["Expectations", "check_model", "logit_spread", "verify"]

# Queries looked at when the logit spread of a module's attention is measured.
_SPREAD_ROWS = 32


@dataclass(slots=True)
class Expectations:
    """The last few oracles, so that runtimes that got the same inputs share one, and the truth about each module."""

    keep: int = 8
    made: dict[tuple[object, ...], Expectation] = field(default_factory=dict)
    truths: dict[int, tuple[object, ModuleTruth]] = field(default_factory=dict)

    def get(self, key: tuple[object, ...], make: Callable[[], Expectation]) -> Expectation:
        if key not in self.made:
            while len(self.made) >= self.keep:
                del self.made[next(iter(self.made))]
            self.made[key] = make()
        return self.made[key]

    def truth(self, model: OnnxModel) -> ModuleTruth | None:
        """The module that a graph came from, beside its float64 copy, made once; None for bare attention."""
        source = model.source
        if source is None or (model.is_bare_attention and model.bind is None):
            return None
        if id(source) not in self.truths:
            # The source is kept beside it, so that its id is not given to another object.
            made = ModuleTruth.of(source, dtype_of(model).value, model.bind)  # type: ignore[arg-type]  # a torch module
            self.truths[id(source)] = (source, made)
        return self.truths[id(source)][1]


def verify(
    model: OnnxModel, runtimes: Iterable[str], checks: Sequence[Check], *, target: str = ""
) -> Iterator[AgreementRecord]:
    """Judge a model on runtimes; one record per attention, check and spread.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not there.
        SessionError: If a runtime fails on the model.
    """
    expectations = Expectations()
    for name in runtimes:
        runtime = get_runtime(name)
        for check in checks:
            yield from check_model(model, runtime, check, target=target, expectations=expectations)


def check_model(
    model: OnnxModel, runtime: Runtime, check: Check, *, target: str, expectations: Expectations
) -> list[AgreementRecord]:
    """Run one check on one runtime.

    Returns:
        Records of every attention and of the module's end; one record with the
        reason if the runtime does not take the model.
    """
    support = runtime.supports(model)
    if isinstance(support, Unsupported):
        return [unsupported_record(model, runtime.name, check, target=target, reason=support.reason)]
    tapped = model if model.is_bare_attention else model.tapped()
    with runtime.load(tapped, LoadOptions(threads=check.threads)) as session:
        return list(_check_session(model, runtime.name, session, check, target, expectations))


def _check_session(
    model: OnnxModel, runtime: str, session: Session, check: Check, target: str, expectations: Expectations
) -> Iterator[AgreementRecord]:
    truth = expectations.truth(model)
    for spread, feeds in _ladder(model, session, check):
        outputs = session.run(feeds)
        # Asked after the run: some runtimes choose their kernels only then.
        checked = Checked(model=model, runtime=runtime, ran=session.ran(), check=check, target=target)
        yield from _judge_shapes(checked, outputs, spread)
        arrays = {**model.constants(), **feeds, **outputs}
        yield from _judge_sites(checked, arrays, spread, expectations)
        if truth is not None:
            for name, agreement in _judge_end(truth, model, feeds, outputs):
                yield checked.record(agreement, step=spread, spread=-1.0, site=f"end:{name}", sizes=end_sizes(check))


def _judge_shapes(checked: Checked, outputs: Feeds, spread: float) -> Iterator[AgreementRecord]:
    """Outputs whose shape is not the one that the graph declares at these sizes: an axis that does not change."""
    if checked.check.inputs is not None:
        return
    for value in checked.model.ir.graph.outputs:
        name = value.name or ""
        try:
            declared = resolve_shape(value, checked.check.sizes)
        except ModelError:
            continue  # the graph does not say
        if outputs[name].shape != declared:
            found = f"Output '{name}' has shape {outputs[name].shape}, the graph declares {declared} at these sizes."
            wrong = Agreement(verdict=Verdict.WRONG, diagnosis=found)
            yield checked.record(wrong, step=spread, spread=-1.0, site=f"end:{name}", sizes=end_sizes(checked.check))


def _judge_sites(
    checked: Checked, arrays: Feeds, spread: float, expectations: Expectations
) -> Iterator[AgreementRecord]:
    """Judge each attention on its own tapped inputs."""
    check, precision = checked.check, checked.ran.precision
    for site in checked.model.sites:
        inputs = AttentionInputs(**{name: arrays[value] for name, value in site.inputs.items()})
        make = partial(expect, site.spec, inputs, precision=find_precision(precision), seed=check.seed)
        shared = checked.model.is_bare_attention and check.inputs is None
        key = (site.spec, inputs.query.dtype, tuple(sorted(check.sizes.items())), spread, check.seed, precision)
        agreement = judge(expectations.get(key, make) if shared else make(), arrays[site.output])
        measured = spread if shared else logit_spread(site, inputs)
        yield checked.record(agreement, step=spread, spread=measured, site=site.name, sizes=site_sizes(site, inputs))
        for name, cache in _judge_cache(inputs, arrays).items():
            yield checked.record(cache, step=spread, spread=measured, site=name, sizes=site_sizes(site, inputs))


def _judge_cache(inputs: AttentionInputs, arrays: Feeds) -> dict[str, Agreement]:
    """The cache that a bare attention gives back: past and new keys, copied, so equal to the last bit."""
    judged: dict[str, Agreement] = {}
    pairs = {"present_key": (inputs.past_key, inputs.key), "present_value": (inputs.past_value, inputs.value)}
    for name, (past, new) in pairs.items():
        if past is None or name not in arrays:
            continue
        equal = np.array_equal(arrays[name], np.concatenate([past, _heads_apart(new, past.shape[1])], axis=2))
        judged[name] = Agreement(
            verdict=Verdict.OK if equal else Verdict.WRONG,
            diagnosis=f"{name} {'is' if equal else 'is not'} the past followed by the new ones.",
            total=arrays[name].size,
        )
    return judged


def _heads_apart(array: NDArray[np.generic], num_heads: int) -> NDArray[np.generic]:
    """4-D BNSH from a 3-D layout; 4-D stays."""
    if array.ndim == 4:
        return array
    return array.reshape(*array.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def _ladder(model: OnnxModel, session: Session, check: Check) -> Iterator[tuple[float, Feeds]]:
    """Feeds of every step; a module's inputs are widened until its attention has the spread asked for."""
    if check.inputs is not None:
        yield -1.0, dict(check.inputs)
        return
    if model.is_bare_attention:
        for spread in check.spreads:
            yield spread, draw_feeds(model, check.sizes, spread=spread, seed=check.seed)
        return
    first = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed)
    if not model.sites:
        # Nothing to measure a spread on: wider inputs at least leave the flat part of the softmax.
        for spread in check.spreads:
            yield -1.0, draw_feeds(model, check.sizes, spread=1.0, seed=check.seed, gain=max(1.0, spread))
        return
    own = _measured_spread(model, {**model.constants(), **first, **session.run(first)})
    if not own > 0.0 or not any(array.dtype.kind not in "bui" for array in first.values()):
        yield -1.0, first
        return
    for spread in check.spreads:
        gain = (spread / own) ** 0.5
        yield spread, draw_feeds(model, check.sizes, spread=spread, seed=check.seed, gain=gain)


def _measured_spread(model: OnnxModel, arrays: Mapping[str, NDArray[np.generic]]) -> float:
    """Median over the attentions of the standard deviation of a row of logits; 0 without any."""
    spreads = [
        logit_spread(site, AttentionInputs(**{name: arrays[value] for name, value in site.inputs.items()}))
        for site in model.sites
    ]
    return float(np.median(spreads)) if spreads else 0.0


def logit_spread(site: AttentionSite, inputs: AttentionInputs) -> float:
    """Root mean square, over some queries, of the standard deviation of their scaled logits."""
    query, key, _ = split_heads(site.spec, inputs)
    if key.shape[2] < 2 or not query.size:
        return 0.0
    scores = site.spec.scale_value * (query[:, :1, :_SPREAD_ROWS] @ key[:, :1].transpose(0, 1, 3, 2))
    spread = float(np.sqrt(np.mean(np.var(scores, axis=-1))))
    return spread if np.isfinite(spread) else 0.0


def _judge_end(truth: ModuleTruth, model: OnnxModel, feeds: Feeds, outputs: Feeds) -> Iterator[tuple[str, Agreement]]:
    """Judge what the module gives in the end, output by output."""
    try:
        agreements = truth.judge(feeds, [outputs[name] for name in model.output_names])
    except ExportError as error:
        agreements = [Agreement(verdict=Verdict.SUSPICIOUS, diagnosis=f"The end could not be compared: {error}")]
    yield from zip(model.output_names, agreements, strict=False)
