"""Rewrite the attentions of a model in another form: find them, raise the opset if the form needs it, lower each.

Runs nothing and saves nothing: `proof` verifies that the result computes what the source computes.
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
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import with_current_values
from sdpa_onnx.graph.model import BODY_SITES_KEY, SITES_KEY, SPEC_KEY, SPECS_KEY, OnnxModel
from sdpa_onnx.graph.model_facts import FORM_KEY
from sdpa_onnx.graph.site import AttentionSite, encode_sites
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
    """A model in another form, not yet verified.

    Args:
        form: The requested form, or the names of the chosen forms.
        source: The model before conversion, at its own opset; every lifted attention can be tapped.
        model: The result, with our metadata. Where nothing was converted, the model that was passed in.
        found: Every attention of the source.
        converted: Names of the attentions that were rewritten.
        already: Names of those that already had the form.
        refused: Why an attention stays unchanged, by its node.
        rows_may_be_empty: Whether the lift assumes that padding may hide every key of a query.
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
        """Whether the opset of the graph was raised."""
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
    """Rewrite every attention that the form can express; the others stay unchanged.

    Names, types and axes of inputs and outputs, all other nodes and all other metadata are kept. The opset
    of the graph is raised only if the form needs it, or `opset` requests it.

    Args:
        model: Stays unchanged; its tensors are shared.
        form: The form to write, or the strategy that chooses one for each attention.
        options: Options within a form.
        opset: Of the result; None = the model's own wherever the form allows.
        again: Also rewrite attentions that already have the form.
        rows_may_be_empty: Whether padding may hide every key of a query; if not, more masks are causal, and the
            result is valid only for masks under which every query sees a key, which its metadata records.

    Raises:
        PlanError: If the requested opset is older than the model's.
        ModelError: If a node has no equivalent at the required opset.
    """
    strategy = FixedForm(form=form, options=options or LowerOptions()) if isinstance(form, Form) else form
    lifted = lift(model, rows_may_be_empty=rows_may_be_empty)
    source = replace(lifted.model, ir=lifted.model.ir.clone())
    wanted = _wanted_opset(model, lifted, strategy, opset, again=again)
    if wanted != model.opset:
        raised = lifted.model.ir.clone()
        raise_opset(raised, wanted)
        lifted = lift(replace(model, ir=raised), rows_may_be_empty=rows_may_be_empty)
    converted = _lowered(model, source, lifted, strategy, again=again)
    return replace(converted, rows_may_be_empty=rows_may_be_empty)


def _wanted_opset(
    model: OnnxModel, lifted: LiftedModel, strategy: FormStrategy, opset: int | None, *, again: bool
) -> int:
    own = model.opset
    if opset is not None and opset < own:
        raise PlanError(
            f"The model has opset {own}, which cannot be lowered to {opset}.", hint=f"Omit --opset, or pass {own}."
        )
    if opset is not None:
        return opset
    needed = [own]
    for attention in lifted.read:
        if _has(attention, model, strategy.form) and not again:
            continue
        at = strategy.needed_opset(attention, own=own)
        if strategy.refusal(attention, opset=at) is None:
            needed.append(at)
    return max(needed)


def _lowered(
    model: OnnxModel, source: OnnxModel, lifted: LiftedModel, strategy: FormStrategy, *, again: bool
) -> ConvertedModel:
    graph, opset = lifted.model.ir, lifted.model.opset
    converted: list[GraphAttention] = []
    kept: dict[str, GraphAttention] = {}
    already: list[str] = []
    refused: dict[str, str] = {}
    edits = GraphEdits(graph)
    for found in lifted.found:
        attention = found.attention
        if attention is None:
            refused[found.node] = found.reason
            continue
        kept[attention.name] = attention
        if _has(attention, model, strategy.form) and not again and not strategy.is_due(attention, opset=opset):
            already.append(attention.name)
        elif (reason := strategy.refusal(attention, opset=opset)) is not None:
            refused[found.node] = reason
        else:
            kept[attention.name] = strategy.write(graph, attention, edits)
            converted.append(attention)
    edits.sort()
    result = model
    if converted:
        _declare_as(model.ir, graph)
        outside = {value for node in graph.graph for value in node.outputs}
        current = [with_current_values(one) for one in kept.values()]
        sites = tuple(one.site for one in current if one.output in outside)
        inside = tuple(one.site for one in current if one.output not in outside)
        names = {one.name for one in converted}
        assumed = [one.assumes for one in lifted.found if one.attention and one.attention.name in names and one.assumes]
        _note(graph, sites, inside, strategy, assumed, opset=opset)
        # Created last: its facts are read once, from the finished graph.
        result = replace(model, ir=graph, sites=sites, body_sites=inside, path=None)
    return ConvertedModel(
        form=strategy.word,
        source=source,
        model=result,
        found=lifted.found,
        converted=tuple(one.name for one in converted),
        already=tuple(already),
        refused=refused,
    )


def _has(attention: GraphAttention, model: OnnxModel, form: Form | None) -> bool:
    """Whether an attention already has the form, by its operator or by the metadata of the file."""
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
    """Give the outputs the shapes that the source declares, not those that were inferred during conversion."""
    for own, value in zip(source.graph.outputs, result.graph.outputs, strict=True):
        value.shape, value.type = own.shape, own.type


def _note(
    graph: ir.Model,
    sites: Sequence[AttentionSite],
    inside: Sequence[AttentionSite],
    strategy: FormStrategy,
    assumed: Sequence[str],
    *,
    opset: int,
) -> None:
    """Write our metadata; the entries of others stay."""
    notes = graph.metadata_props
    notes[SITES_KEY] = encode_sites(sites)
    notes.pop(BODY_SITES_KEY, None)
    if inside:
        notes[BODY_SITES_KEY] = encode_sites(inside)
    notes[FORM_KEY] = strategy.word
    # The notes of an earlier conversion do not hold for this one.
    for key in (*NOTE_KEYS, SPECS_KEY):
        notes.pop(key, None)
    notes.update(strategy.notes)
    if assumed:
        notes[_ASSUMES_KEY] = "; ".join(dict.fromkeys(assumed))
    notes["sdpa_onnx.version"] = __version__
    notes.setdefault(_EXPORTER_KEY, f"{graph.producer_name or ''} {graph.producer_version or ''}".strip())
    if "sdpa_onnx.opset" in notes:
        notes["sdpa_onnx.opset"] = str(opset)
    notes.pop(SPEC_KEY, None)
    if len(sites) == 1:
        notes[SPEC_KEY] = msgspec.json.encode(sites[0].spec).decode()
