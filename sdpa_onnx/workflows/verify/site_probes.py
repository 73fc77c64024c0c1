"""Ask the structural probes of every attention inside a larger model: each is cut out and run by itself.

A module's own weights decide what its attention sees, so no input of the module can be a probe.
"""

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.core.records.records import AgreementRecord, outcome_of_error
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.cut import cut_site
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Unsupported
from sdpa_onnx.workflows.check.feeds import Feeds, draw_feeds
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME, CheckOptions, failed_record
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["check_whole", "probe_sites", "sites_alone"]


def check_whole(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str, expectations: ExpectationCache
) -> list[AgreementRecord]:
    """Run ladder and probes of a model and of every attention in it; see `check_model` and `probe_sites`."""
    asked = replace(check, probes=True)
    whole = check_model(model, runtime, asked, target=target, expectations=expectations)
    return [*whole, *probe_sites(model, runtime, asked, target=target, expectations=expectations)]


def probe_sites(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge the probes of each attention that can be cut out.

    Nothing comes of a bare attention (its probes are asked in `check_model`), of the
    module's own runtime, which has no graph to cut, of an attention that reads other
    values of the model than its own inputs, and of one whose axes are sums of unknown parts.

    Args:
        model: The whole model.
        runtime: Where to run it.
        check: Sizes of the whole model; given inputs are not used.
        target: Name for the records.
        expectations: Oracles that other runtimes share.

    Raises:
        SessionError: If the runtime fails on the whole model.
    """
    for name, part, small in sites_alone(model, runtime, check):
        try:
            yield from check_model(part, runtime, small, target=target, expectations=expectations)
        except SessionError as error:
            reason = f"The attention '{name}' fails by itself: {error}"
            yield failed_record(
                part, runtime.name, small, target=target, reason=reason, outcome=outcome_of_error(error)
            )


def sites_alone(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, arrays: Feeds | None = None
) -> Iterator[tuple[str, OnnxModel, CheckOptions]]:
    """Every attention inside a larger model that can be cut out, with the check of its probes.

    Args:
        model: The whole model.
        runtime: Where it runs.
        check: Sizes of the whole model.
        arrays: Every value around the attentions, by name, if a run gave them already.

    Raises:
        SessionError: If the runtime fails on the whole model.
    """
    if model.is_bare_attention or runtime.name == MODULE_RUNTIME or isinstance(runtime.supports(model), Unsupported):
        return
    cuts = [(site.name, _cut(model, index)) for index, site in enumerate(model.sites)]
    alone = [(name, part) for name, part in cuts if part is not None]
    if arrays is None:
        arrays = _tapped_arrays(model, runtime, check) if alone else {}
    for name, part in alone:
        sizes = _sizes(part, arrays)
        if {*part.facts.axes} <= {*sizes}:
            yield name, part, replace(check, sizes=sizes, spreads=(), inputs=None, probes=True)


def _cut(model: OnnxModel, index: int) -> OnnxModel | None:
    try:
        return cut_site(model, model.sites[index])
    except ModelError:
        return None


def _tapped_arrays(model: OnnxModel, runtime: Runtime, check: CheckOptions) -> Feeds:
    """Every value around the attentions in one run, for their shapes."""
    feeds = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed)
    with runtime.load(model.tapped(), LoadOptions(threads=check.threads)) as session:
        return {**model.constants(), **feeds, **session.run(feeds)}


def _sizes(part: OnnxModel, arrays: Feeds) -> dict[str, int]:
    """Size of every named axis of a part, read off the arrays that it gets inside the whole model."""
    sizes: dict[str, int] = {}
    site = part.sites[0]
    for field, name in site.inputs.items():
        # A value that two inputs share got a second name when it was cut out.
        array = arrays[name if name in arrays else name.removesuffix(f"_as_{field}")]
        for axis, size in enumerate(part.input_value(name).shape or ()):
            if isinstance(size, ir.SymbolicDim) and str(size.value).isidentifier():
                sizes.setdefault(str(size.value), array.shape[axis])
    return sizes
