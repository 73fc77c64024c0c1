"""The bodies of a model that have attentions, each as a model of its own with these as its sites. Runs nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.bodies import Body, bodies_of, needed_nodes, opened
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import FORM_KEY

__all__ = ["OpenedBody", "opened_bodies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBody:
    """A body with attentions.

    Args:
        place: Where it is, as shown to the user: "then_branch of If_3".
        body: The body, a part of the complete model.
        model: Its nodes and what they need as a model; its sites are those of the body.
    """

    place: str
    body: Body
    model: OnnxModel


def opened_bodies(model: OnnxModel) -> Iterator[OpenedBody]:
    """Each body that has attentions of `body_sites`, in graph order."""
    if not model.body_sites:
        return
    for body in bodies_of(model.ir.graph):
        made = {value.name for node in body.graph for value in node.outputs}
        sites = tuple(site for site in model.body_sites if site.output in made)
        if not sites:
            continue
        graph = opened(model.ir, body, _outputs(body, {site.output for site in sites}))
        form = model.ir.metadata_props.get(FORM_KEY)
        if form is not None:
            graph.metadata_props[FORM_KEY] = form
        yield OpenedBody(place=body.place, body=body, model=OnnxModel(ir=graph, sites=sites, unread=()))


def _outputs(body: Body, attended: set[str]) -> list[ir.Value]:
    """The outputs of the body that depend on its attentions; the attentions themselves where none does."""
    own = [value for value in dict.fromkeys(body.graph.outputs) if value.producer() is not None]
    made = [value for node in body.graph for value in node.outputs if value.name in attended]
    sources = {value.producer() for value in made}
    return [value for value in own if sources & needed_nodes([value.producer()])] or made
