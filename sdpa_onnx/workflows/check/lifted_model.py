"""Every attention of a model with its place, from any exporter; one that could not be read has a reason.

The metadata of files that we exported lists their attentions, in any form; in other files they are recognised. Where
the nodes of our own file can be read and contradict its metadata, the nodes count, since they are what runs.
Nothing is run but a file with types that no shape inference knows (`observed_types`): a wrong reading is found when it
is judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.core.attention.spec_contradictions import spec_contradictions
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.bodies import bodies_of
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import IS_UNKNOWN, FoundAttention, FoundAttentions
from sdpa_onnx.graph.model import BODY_SITES_KEY, SITES_KEY, SPEC_KEY, SPECS_KEY, OnnxModel
from sdpa_onnx.graph.model_facts import FORM_KEY
from sdpa_onnx.graph.site import AttentionSite, encode_sites
from sdpa_onnx.graph.site_outputs import FORMAL_OUTPUTS
from sdpa_onnx.graph.subgraphs import inputs_within, nodes_within
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.observed_types import OBSERVED, with_observed_types

__all__ = [
    "LiftedModel",
    "lift",
    "read_and_judgeable",
    "require_attention",
    "with_lifted_sites",
    "with_noted_sites",
]

_WORDS = {
    Form.DECOMPOSED: "decomposed by sdpa-onnx",
    Form.ATTENTION: "ONNX Attention",
    Form.BLOCKED: "blocks of queries in a Loop",
    Form.ORT_MHA: "onnxruntime MultiHeadAttention",
    Form.ORT_GQA: "onnxruntime GroupQueryAttention",
}
# The operator that a file of each form has.
_OPERATORS = {
    Form.ATTENTION: "Attention",
    Form.ORT_MHA: "MultiHeadAttention",
    Form.ORT_GQA: "GroupQueryAttention",
}
_OPSET_KEY = "sdpa_onnx.opset"
# What computes weights outside an Attention operator.
_WEIGHING = frozenset({"Softmax", "LogSoftmax", "Exp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedModel:
    """A model that can be tapped at every attention that was read.

    Args:
        model: Computes what the given model computes; its sites are those of all attentions read, `body_sites` those
            inside the bodies of If, Loop and Scan.
        found: Every attention, in graph order; values belong to `model`.
        is_noted: Whether the attentions of the metadata are as it names them, and not read from the nodes instead.
        contradictions: Where metadata and graph contradict each other, a sentence by the name of the attention,
            "" for the file.
    """

    model: OnnxModel
    found: tuple[FoundAttention, ...]
    contradictions: Mapping[str, str] = field(default_factory=dict)
    is_noted: bool = True

    @property
    def read(self) -> tuple[GraphAttention, ...]:
        """Those that were read."""
        return tuple(found.attention for found in self.found if found.attention is not None)


def lift(model: OnnxModel, *, rows_may_be_empty: bool = True, keeps_outputs: bool = False) -> LiftedModel:
    """Find every attention of a model.

    Args:
        model: Is not changed.
        rows_may_be_empty: Whether padding may hide every key of a query; if not, more masks are causal.
        keeps_outputs: Whether the operators' own outputs are judged; if not, those that the standard operator does
            not have are replaced by added nodes, so that it can be written.
    """
    findings = find_attentions(model.ir, rows_may_be_empty=rows_may_be_empty, keeps_outputs=keeps_outputs)
    if any(IS_UNKNOWN in one.reason for one in findings.found) and (typed := with_observed_types(model)) is not None:
        known = {one.node for one in findings.found if one.attention is not None}
        again = find_attentions(typed.ir, rows_may_be_empty=rows_may_be_empty, keeps_outputs=keeps_outputs)
        findings = replace(again, found=tuple(one if one.node in known else _observed(one) for one in again.found))
    findings.model.meta.update(model.ir.meta)  # sizes that it was traced at, which only this process may know
    values = _values(findings.model.graph)
    dialect = _dialect(model)
    noted = [
        one
        for site in (*_noted_sites(model), *_noted_inside(model))
        if (one := _by_note(site, values, dialect)) is not None
    ]
    covered = {id(node) for one in noted if one.attention is not None for node in _region(one.attention)}
    rest = [one for one in findings.found if not _is_within(one, findings.model, covered)]
    checked = [_checked(one, findings) for one in noted]
    contradictions = {one.attention.name: text for one, text in checked if one.attention is not None and text}
    contradictions |= _contradicting_specs(model, rest)
    is_noted = all(one is own for one, (own, _) in zip(noted, checked, strict=True))
    noted = [one for one, _ in checked]
    if text := _file_contradiction(model):
        contradictions[""] = text
    places = {node.name: place for place, node in enumerate(findings.model.graph.all_nodes())}
    found = sorted([*noted, *rest], key=lambda one: places.get(one.node, len(places)))
    outside = {value for node in findings.model.graph for value in node.outputs}
    read = [one.attention for one in found if one.attention is not None]
    return LiftedModel(
        model=replace(
            model,
            ir=findings.model,
            sites=tuple(one.site for one in read if one.output in outside),
            body_sites=tuple(one.site for one in read if one.output not in outside),
        ),
        found=tuple(found),
        contradictions=contradictions,
        is_noted=is_noted,
    )


def _observed(found: FoundAttention) -> FoundAttention:
    return found if found.attention is None else replace(found, warnings=(*found.warnings, OBSERVED))


def with_lifted_sites(model: OnnxModel) -> LiftedModel:
    """Return a model that can be judged at every attention that was read, and what was found.

    Axes of its inputs that have no name get one, so that sizes can be chosen for them. A graph whose metadata lists
    every attention that can be read is kept, except where its nodes contradict its metadata or it was quantised since.
    The attentions that cannot be read are the `unread` of the model.
    """
    model = named_axes(model)
    if model.path is None and _lists_every_attention(model):
        known = model if model.sites else replace(model, unread=())
        return LiftedModel(model=known, found=())  # exported in this process, so the metadata is right
    return _judgeable(model, lift(model, keeps_outputs=True))


def read_and_judgeable(model: OnnxModel) -> tuple[LiftedModel, OnnxModel]:
    """What `lift` reads, and the model of `with_lifted_sites`; the graph is read once where both are the same.

    They differ where an operator of onnxruntime has outputs that the standard operator does not have.
    """
    named = named_axes(model)
    if model.path is None and _lists_every_attention(model):
        return lift(named), with_lifted_sites(named).model
    judged = lift(named, keeps_outputs=True)
    has_own_outputs = any(node.domain == CONTRIB_DOMAIN for node in named.ir.graph.all_nodes())
    return lift(named) if has_own_outputs or named.ir.functions else judged, _judgeable(named, judged).model


def _judgeable(model: OnnxModel, lifted: LiftedModel) -> LiftedModel:
    unread = tuple(unread_sentence(one) for one in lifted.found if one.attention is None)
    is_listed = len(lifted.model.sites) <= len(_noted_sites(model)) and not lifted.model.body_sites
    if is_listed and lifted.is_noted and not any(lifted.contradictions):
        kept = replace(lifted, model=replace(model, unread=unread))
        return kept if not model.sites else replace(kept, found=())
    return replace(lifted, model=replace(lifted.model, unread=unread))


def with_noted_sites(model: OnnxModel) -> OnnxModel:
    """An export whose metadata also lists the attentions that only the reader of files found.

    Of one that can be read only after nodes are added to the graph, the metadata has what it computes;
    `with_lifted_sites` finds it again.
    """
    lifted = with_lifted_sites(model).model
    own = _values(model.ir.graph)
    sites = tuple(site for site in lifted.sites if all(name in own for name in site.taps))
    notes, specs = model.ir.metadata_props, {site.name: site.spec for site in lifted.sites if site not in sites}
    # Where one is judged apart, the graph itself is no place to report what cannot be judged.
    unread = lifted.unread if not specs else None
    if specs:
        notes[SPECS_KEY] = msgspec.json.encode(specs).decode()
    if len(sites) <= len(model.sites):
        return replace(model, unread=unread)
    notes[SITES_KEY] = encode_sites(sites)
    notes.pop(SPEC_KEY, None)
    if len(sites) == 1:
        notes[SPEC_KEY] = msgspec.json.encode(sites[0].spec).decode()
    return replace(model, sites=sites, unread=unread)


def unread_sentence(found: FoundAttention) -> str:
    """Why an attention is not judged."""
    return f"An attention is not judged ({found.dialect}): {found.reason.rstrip('.')}."


def _lists_every_attention(model: OnnxModel) -> bool:
    """Whether every softmax of one of our graphs belongs to an attention that its metadata lists."""
    if SITES_KEY not in model.ir.metadata_props:
        return False
    values = _values(model.ir.graph)
    noted = [one for site in model.sites if (one := _by_note(site, values, "")) is not None]
    covered = {id(node) for one in noted if one.attention is not None for node in _region(one.attention)}
    return not any(node.op_type in _WEIGHING and id(node) not in covered for node in model.ir.graph.all_nodes())


def require_attention(lifted: LiftedModel, target: str) -> None:
    """Refuse a model in which no attention was found, read or not.

    Raises:
        ModelError: If there is none.
    """
    if not lifted.found:
        raise ModelError(f"{target} has no attention in it.", hint="Neither an operator nor softmax(QK^T) V was found.")


def _noted_sites(model: OnnxModel) -> tuple[AttentionSite, ...]:
    return model.sites if SITES_KEY in model.ir.metadata_props else ()


def _noted_inside(model: OnnxModel) -> tuple[AttentionSite, ...]:
    return model.body_sites if BODY_SITES_KEY in model.ir.metadata_props else ()


def _dialect(model: OnnxModel) -> str:
    """The name of the dialect in which we wrote the attentions of a file."""
    form = model.facts.form
    if FORM_KEY not in model.ir.metadata_props and form is Form.DECOMPOSED:
        return "decomposed by torch.onnx"
    return _WORDS[form]


def _by_note(site: AttentionSite, values: Mapping[str, ir.Value], dialect: str) -> FoundAttention | None:
    """The attention that the metadata lists; None if the graph has no such values."""
    names = [*site.inputs.values(), site.output]
    if any(name not in values for name in names):
        return None
    output, query = values[site.output], values[site.query]
    producer = output.producer()
    if producer is None or query.dtype is None or query.dtype.numpy().name not in set(Dtype):
        return None
    present_key, present_value = _cache(site, values, producer)
    own = {field: values[name] for field, name in site.inputs.items()}
    attention = GraphAttention(
        name=site.name,
        spec=site.spec,
        dtype=Dtype(query.dtype.numpy().name),
        query=own["query"],
        key=own["key"],
        value=own["value"],
        output=output,
        attn_mask=own.get("attn_mask"),
        past_key=own.get("past_key"),
        past_value=own.get("past_value"),
        nonpad_kv_seqlen=own.get("nonpad_kv_seqlen"),
        present_key=present_key,
        present_value=present_value,
        scores=None if site.scores is None else values.get(site.scores),
        scores_mode=int(site.scores_mode),
        mask_rule=site.mask_rule,
        quantisers=site.quantisers or ScoreQuantisers(),
        is_bound_by_mask=site.is_bound_by_mask,
    )
    return FoundAttention(dialect=dialect, node=producer.name or site.name, attention=attention)


def _checked(noted: FoundAttention, findings: FoundAttentions) -> tuple[FoundAttention, str]:
    """An attention of the metadata, and ""; where its nodes contradict it, the attention as read, and a sentence."""
    attention = noted.attention
    if attention is None:
        return noted, ""
    nodes = list(_region(attention))
    region = {id(node) for node in nodes}
    readings = [one for one in findings.found if _is_within(one, findings.model, region)]
    # A file that was quantised after we wrote it: pairs are between the values that the metadata names.
    is_quantised = not attention.quantisers and any(node.op_type == "QuantizeLinear" for node in nodes)
    if len(readings) != 1 or (readings[0].attention is None and not is_quantised):
        return noted, ""
    if readings[0].attention is None:
        return readings[0], ""
    read = replace(readings[0].attention, name=attention.name)
    if is_quantised:
        return replace(readings[0], attention=read), ""
    wrong = "; ".join(spec_contradictions(attention.spec, read.spec))
    if not wrong:
        return noted, ""
    text = _contradiction(attention.name, wrong)
    return replace(readings[0], attention=read, warnings=(*readings[0].warnings, text)), text


def _contradicting_specs(model: OnnxModel, read: Sequence[FoundAttention]) -> dict[str, str]:
    """A sentence by the name of each attention that computes something else than the metadata states.

    Raises:
        ModelError: If the metadata cannot be read.
    """
    text = model.ir.metadata_props.get(SPECS_KEY)
    if text is None:
        return {}
    try:
        stated = msgspec.json.decode(text, type=dict[str, AttentionSpec])
    except msgspec.MsgspecError as error:
        raise ModelError(f"The metadata '{SPECS_KEY}' of the model cannot be read: {error}.") from error
    own = {one.attention.name: one.attention.spec for one in read if one.attention is not None}
    wrong = {name: "; ".join(spec_contradictions(spec, own[name])) for name, spec in stated.items() if name in own}
    return {name: _contradiction(name, text) for name, text in wrong.items() if text}


def _contradiction(name: str, text: str) -> str:
    return f"The metadata contradicts the nodes of '{name}': {text}."


def _file_contradiction(model: OnnxModel) -> str:
    """Where form or opset in the metadata contradict the file, a sentence; "" if they do not."""
    notes, types = model.ir.metadata_props, {node.op_type for node in model.ir.graph.all_nodes()}
    found: list[str] = []
    operator = _OPERATORS.get(model.facts.form)
    if FORM_KEY in notes and operator is not None and operator not in types:
        found.append(f"form {model.facts.form} in the metadata, no {operator} in the nodes")
    if FORM_KEY in notes and model.facts.form is Form.DECOMPOSED and "Softmax" not in types:
        found.append(f"form {model.facts.form} in the metadata, no Softmax in the nodes")
    opset = notes.get(_OPSET_KEY, str(model.opset))
    if opset != str(model.opset):
        found.append(f"opset {opset} in the metadata, {model.opset} in the file")
    return f"The metadata contradicts the file: {'; '.join(found)}." if found else ""


def _cache(
    site: AttentionSite, values: Mapping[str, ir.Value], producer: ir.Node
) -> tuple[ir.Value | None, ir.Value | None]:
    """The values that hold past and new keys and values, where something reads them."""
    # In 3-D the new keys are split into heads first; a Concat of that is not the value of the site.
    if (producer.domain, producer.op_type) not in FORMAL_OUTPUTS and site.spec.layout is not Layout.BNSH:
        return None, None
    names = (site.present_key, site.present_value)
    key, value = (None if name is None or site.past_key is None else values.get(name) for name in names)
    return key, value


def _region(attention: GraphAttention) -> Iterator[ir.Node]:
    """Nodes between an attention's inputs and its output, those of subgraphs too."""
    ends = {id(getattr(attention, field)) for field in attention.site.inputs}
    waiting = [attention.output]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if id(value) in ends or node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield from nodes_within(node)
        waiting += inputs_within(node)


def _is_within(found: FoundAttention, model: ir.Model, covered: set[int]) -> bool:
    """Whether a recognised attention belongs to one that the metadata lists already."""
    if found.attention is not None:
        producer = found.attention.output.producer()
        if producer is not None and id(producer) in covered:
            return True
    if not covered or not found.node:  # or else each attention would be looked for in all nodes
        return False
    return any(id(node) in covered for node in model.graph.all_nodes() if node.name == found.node)


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = {value.name or "": value for value in graph.inputs}
    values |= dict(graph.initializers)
    for body in bodies_of(graph):
        values |= {value.name or "": value for value in body.graph.inputs} | dict(body.graph.initializers)
    return values | {value.name or "": value for node in graph.all_nodes() for value in node.outputs}
