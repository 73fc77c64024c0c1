"""Count the operations and bytes of a graph at given sizes: its attentions and its matrix products with weights.

Those in bodies of If, Loop and Scan count as often as the bodies run. Counts from shapes alone; runs nothing. Returns
None where a shape is unknown, and never guesses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.roofline import AttentionWork, attention_work
from sdpa_onnx.core.attention.spec import AttentionCase
from sdpa_onnx.errors import CaseError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.workflows.check.feeds import bare_case
from sdpa_onnx.workflows.timing.graph_visits import GraphVisit, UncountedError, visits

__all__ = ["CountedWork", "model_work", "site_case"]

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWork:
    """The work of one call.

    Args:
        work: None where it is not known.
        reason: Why the work of a body is not known, a sentence; "" otherwise.
    """

    work: AttentionWork | None
    reason: str = ""


def model_work(model: OnnxModel, sizes: Sizes, feeds: "Mapping[str, NDArray[np.generic]] | None" = None) -> CountedWork:
    """Work of one call.

    Attention is counted by `attention_work`; every MatMul and Gemm with a
    constant weight by 2 rows K N. Other nodes (norms, activations) are not counted.

    Args:
        model: Its attentions are its sites; one that was not read is not counted, so there is no work.
        sizes: Of its axes.
        feeds: Inputs by name, of which those that decide how often a body runs count.

    Source: METHOD C.1.
    """
    if model.unread:
        return CountedWork(work=None)
    try:
        every = list(visits(model, sizes, feeds))
        cases = [(bare_case(model, sizes), 1)] if model.is_bare_attention else list(_cases(model, every))
        weights = sum(visit.times * _weight_flops(visit) for visit in every)
        works = [(attention_work(case), times) for case, times in cases if case is not None]
    except UncountedError as error:
        return CountedWork(work=None, reason=f"FLOPs and roof are unknown: {error}.")
    except (ModelError, CaseError):
        return CountedWork(work=None)
    work = AttentionWork(
        useful_flops=weights + sum(times * work.useful_flops for work, times in works),
        executed_flops=weights + sum(times * work.executed_flops for work, times in works),
        exps=sum(times * work.exps for work, times in works),
        bytes_moved=sum(times * work.bytes_moved for work, times in works),
    )
    return CountedWork(work=work)


def site_case(model: OnnxModel, site: AttentionSite, sizes: Sizes) -> AttentionCase:
    """Sizes of one attention of the main graph.

    Raises:
        ModelError: If the shapes of its query and key are not known.
    """
    main = next(visits(model, sizes))
    return bare_case(model, sizes) or _case(model, site, main)


def _cases(model: OnnxModel, every: "list[GraphVisit]") -> Iterator[tuple[AttentionCase, int]]:
    """Every attention that runs, and how often."""
    for visit in every:
        made = {value.name for node in visit.graph for value in node.outputs}
        for site in (*model.sites, *model.body_sites):
            if site.output in made:
                yield _case(model, site, visit), visit.times


def _case(model: OnnxModel, site: AttentionSite, visit: GraphVisit) -> AttentionCase:
    query, key = (visit.shape_of(name) for name in (site.query, site.key))
    axis = 2 if len(query) == 4 else 1
    past = visit.shape_of(site.past_key)[2] if site.past_key else 0
    return AttentionCase(
        spec=site.spec,
        batch_size=query[0],
        q_seq_len=query[axis],
        kv_seq_len=key[axis],
        past_seq_len=past,
        dtype=model.facts.dtype,
    )


def _weight_flops(visit: GraphVisit) -> int:
    total = 0
    for node in visit.graph:
        if node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
            continue
        data, weight = node.inputs[0], node.inputs[1]
        if data is None or weight is None or weight.const_value is None or weight.shape is None:
            continue
        rows = 1
        for size in visit.shape(data)[:-1]:
            rows *= size
        elements = 1
        for size in weight.shape.numpy():
            elements *= size
        total += 2 * rows * elements
    return total
