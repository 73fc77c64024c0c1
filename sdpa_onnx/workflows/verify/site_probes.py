"""Run the structural probes of every attention inside a larger model: each is cut out and run by itself.

The weights of a module decide what its attention reads, so no input of the module can be a probe.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from sdpa_onnx.core.records.records import AgreementRecord, outcome_of_error
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.cut import cut_site
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, Unsupported
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME, failed_record
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["ShapeKeeper", "SiteAlone", "check_whole", "probe_sites", "sites_alone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAlone:
    """One attention of a larger model, cut out.

    Args:
        name: Of the attention.
        model: The attention and nothing around it.
        check: The check of its probes, at the sizes that it has inside the larger model.
    """

    name: str
    model: OnnxModel
    check: CheckOptions


@dataclass(slots=True)
class ShapeKeeper:
    """The shape of every value in the first run of a check; handed to `check_model` as `keep`."""

    found: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __call__(self, runtime: str, step: str, arrays: Feeds) -> None:
        self.found = {name: array.shape for name, array in arrays.items()} | self.found


def check_whole(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str, expectations: ExpectationCache
) -> list[AgreementRecord]:
    """Run ladder and probes of a model and of every attention in it; see `check_model` and `probe_sites`.

    Raises:
        SessionError: If the runtime fails on the whole model.
    """
    probed, shapes = replace(check, probes=True), ShapeKeeper()
    whole = check_model(model, runtime, probed, target=target, expectations=expectations, keep=shapes)
    alone = sites_alone(model, runtime, probed, shapes.found)
    return [*whole, *probe_sites(alone, runtime, target=target, expectations=expectations)]


def probe_sites(
    alone: Iterable[SiteAlone], runtime: Runtime, *, target: str, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge the probes of attentions that were cut out.

    Args:
        alone: See `sites_alone`.
        runtime: Where to run them.
        target: Name for the records.
        expectations: Oracles that other runtimes share.
    """
    for site in alone:
        try:
            yield from check_model(site.model, runtime, site.check, target=target, expectations=expectations)
        except SessionError as error:
            reason = f"The attention '{site.name}' fails by itself: {error}"
            yield failed_record(
                site.model, runtime.name, site.check, target=target, reason=reason, outcome=outcome_of_error(error)
            )


def sites_alone(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, shapes: Mapping[str, Sequence[int]]
) -> Iterator[SiteAlone]:
    """Every attention inside a larger model that can be cut out, with the check of its probes.

    There is none in a bare attention (`check_model` runs its probes), none for the module's own runtime, which
    has no graph to cut, none that reads other values of the model than its own inputs or has axes that
    are sums of unknown parts, and none whose causality or windows are those of its mask inside the model, or in
    blocks that skip what it hides: a probe has other masks.

    Args:
        model: The whole model.
        runtime: Where it runs.
        check: Of the whole model.
        shapes: Of every value around the attentions, from a run of the whole model.
    """
    if model.is_bare_attention or runtime.name == MODULE_RUNTIME or isinstance(runtime.supports(model), Unsupported):
        return
    known = {name: array.shape for name, array in model.constants().items()} | dict(shapes)
    for site in model.sites:
        try:
            part = cut_site(model, site)
        except ModelError:
            continue
        sizes = {} if part is None else _sizes(part, known)
        if part is not None and {*part.facts.axes} <= {*sizes} and not _relies_on_its_mask(part):
            alone = replace(check, sizes=sizes, spreads=(), inputs=None, probes=True)
            yield SiteAlone(name=site.name, model=part, check=alone)


def _relies_on_its_mask(part: OnnxModel) -> bool:
    """Whether only the mask inside the larger model hides what the part skips, or what its spec hides."""
    in_blocks = any(node.op_type in ("If", "Loop") for node in part.ir.graph)
    return any(site.is_bound_by_mask or (in_blocks and site.mask_band) for site in part.sites)


def _sizes(part: OnnxModel, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Size of every named axis of a part, read off the shapes of the values that it gets inside the whole model."""
    sizes: dict[str, int] = {}
    declared = {value.name: value.shape or () for value in part.ir.graph.inputs}
    for field_name, name in part.sites[0].inputs.items():
        # A value that two inputs share has a second name in the part.
        shape = shapes[name if name in shapes else name.removesuffix(f"_as_{field_name}")]
        for axis, size in enumerate(declared[name]):
            if isinstance(size, ir.SymbolicDim) and str(size.value).isidentifier():
                sizes.setdefault(str(size.value), shape[axis])
    return sizes
