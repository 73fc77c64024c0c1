"""Define the strategy interface by which `convert_model` writes attentions, and the strategy of one fixed form.

Does not convert models. The strategies that probe a runtime are in `runtime_strategies`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import lower, needed_opset, refusal

__all__ = ["AUTO_KEY", "NOTE_KEYS", "WORKAROUNDS_KEY", "FixedForm", "FormStrategy"]

# Metadata keys for the decisions of a strategy.
AUTO_KEY = "sdpa_onnx.auto"
WORKAROUNDS_KEY = "sdpa_onnx.workarounds"
NOTE_KEYS = (AUTO_KEY, WORKAROUNDS_KEY)


class FormStrategy(Protocol):
    """Decides how `convert_model` writes each attention."""

    @property
    def form(self) -> Form | None:
        """The form, or None if each attention may have a different one."""
        ...

    @property
    def word(self) -> str:
        """The form, or the names of several, for the metadata."""
        ...

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """Opset that the graph needs for this attention, at least `own`, the opset that it has."""
        ...

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why this attention stays unchanged, one sentence; None if it can be written."""
        ...

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:
        """Whether to write an attention again that already has the form."""
        ...

    def write(self, graph: ir.Model, attention: GraphAttention, edits: GraphEdits) -> GraphAttention:
        """Write the attention into a graph of the opset that `refusal` was called with."""
        ...

    @property
    def records(self) -> tuple[FormRecord, ...]:
        """Records of the probes and timings."""
        ...

    @property
    def notes(self) -> Mapping[str, str]:
        """Metadata to add to the model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedForm:
    """One form with fixed options; does not run a runtime."""

    form: Form
    options: LowerOptions = field(default_factory=LowerOptions)

    @property
    def word(self) -> str:
        return self.form.value

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """The opset that the form needs, at least `own`."""
        return max(own, needed_opset(attention, self.form, self.options))

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why the form cannot express this attention; None if it can."""
        return refusal(attention, self.form, opset=opset, options=self.options)

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:  # the arguments are those of the protocol
        """Never: an attention in this form is kept."""
        return False

    def write(self, graph: ir.Model, attention: GraphAttention, edits: GraphEdits) -> GraphAttention:
        """Write the form."""
        return lower(graph, attention, self.form, self.options, edits=edits)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return ()

    @property
    def notes(self) -> Mapping[str, str]:
        return {}
