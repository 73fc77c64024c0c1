"""Write the attentions of a model in another form: find them, raise the opset only if the form must, lower each.

Runs nothing and saves nothing: that the result computes what the source computes is proved in `convert_proof`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lower.lower import current
from sdpa_onnx.graph.model import SITES_KEY, SPEC_KEY, OnnxModel
from sdpa_onnx.graph.model_facts import FORM_KEY
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.version import __version__
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, lift
from sdpa_onnx.workflows.choose_form.form_strategy import NOTE_KEYS, FixedForm, FormStrategy
from sdpa_onnx.workflows.convert.upgrade_opset import raise_opset

__all__ = ["ConvertedModel", "convert_model"]

_EXPORTER_KEY = "sdpa_onnx.exporter"
_ASSUMES_KEY = "sdpa_onnx.assumes"
_OPERATORS = {
    ("", "Attention"): Form.ATTENTION,
    (CONTRIB_DOMAIN, "MultiHeadAttention"): Form.ORT_MHA,
    (CONTRIB_DOMAIN, "GroupQueryAttention"): Form.ORT_GQA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedModel:
    """A model in another form, not yet proved.

    Args:
        form: The form that was asked for, or the words of those that were chosen.
        source: What was converted, at its own opset, tappable at every attention read.
        model: The result, with our metadata. Where nothing was converted, what was given.
        found: Every attention of the source.
        converted: Names of those that were written in the form.
        already: Names of those that had it.
        refused: Why another one stayed as it was, by its node.
        rows_may_be_empty: Whether the reading reckons with padding that hides every key of a query.
    """

    form: str
    source: OnnxModel
    model: OnnxModel
    found: tuple[FoundAttention, ...]
    converted: tuple[str, ...]
    already: tuple[str, ...]
    refused: Mapping[str, str]
    rows_may_be_empty: bool = True

    @property
    def is_raised(self) -> bool:
        """Whether the whole graph got a newer opset."""
        return self.model.opset != self.source.opset


def convert_model(
    model: OnnxModel,
    form: Form | FormStrategy,
    options: LowerOptions | None = None,
    *,
    opset: int | None = None,
    again: bool = False,
    rows_may_be_empty: bool = True,
) -> ConvertedModel:
    """Write every attention of a model that the form can say in that form; the others stay as they are.

    Names, types and axes of inputs and outputs, all other nodes and all other metadata survive. The opset
    of the whole graph is raised only if the form needs it, or `opset` asks for it.

    Args:
        model: Is left as it is; its tensors are shared.
        form: What to write, or the way that finds it for each attention.
        options: Within a form.
        opset: Of the result; None = the model's own wherever the form allows.
        again: Also write anew what has the form already.
        rows_may_be_empty: Whether padding may hide every key of a query; if not, more masks are causal, and the
            result holds only for masks under which every query sees a key, which its metadata says.

    Raises:
        PlanError: If the opset asked for is older than the model's.
        ModelError: If a node has no equivalent at the opset that is needed.
    """
    writing = FixedForm(form=form, options=options or LowerOptions()) if isinstance(form, Form) else form
    lifted = lift(model, rows_may_be_empty=rows_may_be_empty)
    source = replace(lifted.model, ir=lifted.model.ir.clone())
    wanted = _wanted_opset(model, lifted, writing, opset, again=again)
    if wanted != model.opset:
        raised = lifted.model.ir.clone()
        raise_opset(raised, wanted)
        lifted = lift(replace(model, ir=raised), rows_may_be_empty=rows_may_be_empty)
    done = _lowered(model, source, lifted, writing, again=again)
    return replace(done, rows_may_be_empty=rows_may_be_empty)


def _wanted_opset(
    model: OnnxModel, lifted: LiftedModel, writing: FormStrategy, opset: int | None, *, again: bool
) -> int:
    own = model.opset
    if opset is not None and opset < own:
        raise PlanError(
            f"The model has opset {own}, which cannot be lowered to {opset}.", hint=f"Leave out --opset, or give {own}."
        )
    if opset is not None:
        return opset
    needed = [own]
    for attention in lifted.read:
        if _has(attention, model, writing.form) and not again:
            continue
        at = writing.needed_opset(attention, own=own)
        if writing.refusal(attention, opset=at) is None:
            needed.append(at)
    return max(needed)


def _lowered(
    model: OnnxModel, source: OnnxModel, lifted: LiftedModel, writing: FormStrategy, *, again: bool
) -> ConvertedModel:
    graph, opset = lifted.model.ir, lifted.model.opset
    converted: list[GraphAttention] = []
    kept: dict[str, GraphAttention] = {}
    already: list[str] = []
    refused: dict[str, str] = {}
    for found in lifted.found:
        attention = found.attention
        if attention is None:
            refused[found.node] = found.reason
            continue
        kept[attention.name] = attention
        if _has(attention, model, writing.form) and not again and not writing.is_due(attention, opset=opset):
            already.append(attention.name)
        elif (reason := writing.refusal(attention, opset=opset)) is not None:
            refused[found.node] = reason
        else:
            kept[attention.name] = writing.write(graph, attention)
            converted.append(attention)
    result = model
    if converted:
        _declare_as(model.ir, graph)
        sites = tuple(current(one).site for one in kept.values())
        names = {one.name for one in converted}
        assumed = [one.assumes for one in lifted.found if one.attention and one.attention.name in names and one.assumes]
        _note(graph, sites, writing, assumed, opset=opset)
        # Made last: its facts are read once, from a graph that is finished.
        result = replace(model, ir=graph, sites=sites, path=None)
    return ConvertedModel(
        form=writing.word,
        source=source,
        model=result,
        found=lifted.found,
        converted=tuple(one.name for one in converted),
        already=tuple(already),
        refused=refused,
    )


def _has(attention: GraphAttention, model: OnnxModel, form: Form | None) -> bool:
    """Whether an attention stands in the form already: by its operator, or by what the file says of all of it."""
    if form is None:
        return False
    producer = attention.output.producer()
    operator = None if producer is None else _OPERATORS.get((producer.domain, producer.op_type))
    if operator is not None:
        return operator is form
    if model.ir.metadata_props.get(FORM_KEY) is not None:
        return model.facts.form == form
    return form is Form.DECOMPOSED and (producer is None or producer.domain == "")


def _declare_as(source: ir.Model, result: ir.Model) -> None:
    """The outputs with the shapes that the source declares, not with those that were inferred on the way."""
    for own, value in zip(source.graph.outputs, result.graph.outputs, strict=True):
        value.shape, value.type = own.shape, own.type


def _note(
    graph: ir.Model, sites: Sequence[AttentionSite], writing: FormStrategy, assumed: Sequence[str], *, opset: int
) -> None:
    """Write our metadata; metadata of others stays."""
    notes = graph.metadata_props
    notes[SITES_KEY] = msgspec.json.encode(sites).decode()
    notes[FORM_KEY] = writing.word
    # Why an earlier conversion wrote it as it did says nothing of this one.
    for key in NOTE_KEYS:
        notes.pop(key, None)
    notes.update(writing.notes)
    if assumed:
        notes[_ASSUMES_KEY] = "; ".join(dict.fromkeys(assumed))
    notes["sdpa_onnx.version"] = __version__
    notes.setdefault(_EXPORTER_KEY, f"{graph.producer_name or ''} {graph.producer_version or ''}".strip())
    if "sdpa_onnx.opset" in notes:
        notes["sdpa_onnx.opset"] = str(opset)
    notes.pop(SPEC_KEY, None)
    if len(sites) == 1:
        notes[SPEC_KEY] = msgspec.json.encode(sites[0].spec).decode()
