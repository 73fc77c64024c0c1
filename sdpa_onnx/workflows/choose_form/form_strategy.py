"""How the attentions of a model are written: what `convert_model` asks, and the answer of one fixed form.

The ways that ask a runtime are in `writing_for`; no model is converted here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import lower, needed_opset, refusal

__all__ = ["AUTO_KEY", "NOTE_KEYS", "WORKAROUNDS_KEY", "FixedForm", "FormStrategy"]

# Metadata that tells how a way of writing decided.
AUTO_KEY = "sdpa_onnx.auto"
WORKAROUNDS_KEY = "sdpa_onnx.workarounds"
NOTE_KEYS = (AUTO_KEY, WORKAROUNDS_KEY)


class FormStrategy(Protocol):
    """What `convert_model` asks of a way of writing."""

    @property
    def form(self) -> Form | None:
        """The one form, or None where each attention has its own."""
        ...

    @property
    def word(self) -> str:
        """The form, or what stands for several: kept in the metadata."""
        ...

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """Opset that the graph needs for this attention, at least its own."""
        ...

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why this attention stays as it is, one sentence; None if it is written."""
        ...

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:
        """Whether one that has the form already is to be written anew."""
        ...

    def write(self, graph: ir.Model, attention: GraphAttention) -> GraphAttention:
        """Write it into a graph of the opset that was asked about."""
        ...

    @property
    def records(self) -> tuple[FormRecord, ...]:
        """What was probed and timed for it."""
        ...

    @property
    def notes(self) -> Mapping[str, str]:
        """Metadata that goes with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedForm:
    """One form with fixed options; no runtime is asked."""

    form: Form
    options: LowerOptions = field(default_factory=LowerOptions)

    @property
    def word(self) -> str:
        return self.form.value

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """As the form says."""
        return max(own, needed_opset(attention, self.form, self.options))

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """As the form says."""
        return refusal(attention, self.form, opset=opset, options=self.options)

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:  # every way is asked alike
        """Never: it is as good as ours."""
        return False

    def write(self, graph: ir.Model, attention: GraphAttention) -> GraphAttention:
        """Write the form."""
        return lower(graph, attention, self.form, self.options)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return ()

    @property
    def notes(self) -> Mapping[str, str]:
        return {}
