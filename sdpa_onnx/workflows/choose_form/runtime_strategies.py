"""Strategies that probe a runtime: one form with the workarounds that it needs, or the fastest form per attention.

They keep their findings for the records and the metadata of the model. Do not convert models.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import needed_opset, refusal
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.choice import FormChoice
from sdpa_onnx.workflows.choose_form.choose import RaceBudget, at_opset, choose_form
from sdpa_onnx.workflows.choose_form.form_strategy import AUTO_KEY, WORKAROUNDS_KEY, FixedForm
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, problem_of
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, WorkableForm, probe_form

__all__ = ["FastestForm", "RuntimeForm"]


@dataclass(slots=True, kw_only=True)
class RuntimeForm:
    """One form with the workarounds that a runtime needs; refuses an attention on which the runtime stays wrong.

    Args:
        runtime: The runtime to probe. The caller may pass a `GuardedRuntime` to use one process for all probes.
        form: The form.
        options: Options of the form; workarounds are added.
        probe: Probes a form on a runtime; a parameter for tests.
    """

    runtime: Runtime
    form: Form
    options: LowerOptions = field(default_factory=LowerOptions)
    probe: Callable[..., WorkableForm | RefusedForm] = probe_form
    _found: dict[tuple[str, int], WorkableForm | RefusedForm] = field(default_factory=dict, init=False)

    @property
    def word(self) -> str:
        return self.form.value

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """The opset that the form needs, at least `own`."""
        return max(own, needed_opset(attention, self.form, self.options))

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why the form cannot express this attention, or the evidence that the runtime is wrong with any workaround."""
        reason = refusal(attention, self.form, opset=opset, options=self.options)
        if reason is not None:
            return reason
        found = self._probe(attention, opset)
        return found.reason if isinstance(found, RefusedForm) else None

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:
        """Whether the runtime needs a workaround, or is wrong with any workaround."""
        found = self._probe(attention, opset)
        return isinstance(found, RefusedForm) or found.options.workarounds != self.options.workarounds

    def write(self, graph: ir.Model, attention: GraphAttention, edits: GraphEdits) -> GraphAttention:
        """Write the form with the workarounds that this attention needs."""
        found = self._probe(attention, graph.opset_imports.get("", 0))
        options = found.options if isinstance(found, WorkableForm) else self.options
        return FixedForm(form=self.form, options=options).write(graph, attention, edits)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return tuple(msgspec.structs.replace(found.record, site=name) for (name, _), found in self._found.items())

    @property
    def notes(self) -> Mapping[str, str]:
        """The workarounds by attention, which explain the graph to a reader."""
        used = {record.site: record.workarounds for record in self.records if record.workarounds}
        return {WORKAROUNDS_KEY: msgspec.json.encode(used, order="sorted").decode()} if used else {}

    def _probe(self, attention: GraphAttention, opset: int) -> WorkableForm | RefusedForm:
        key = (attention.name, opset)
        if key not in self._found:
            problem = problem_of(attention)
            self._found[key] = self.probe(self.runtime, problem, self.form, opset=opset, options=self.options)
        return self._found[key]


@dataclass(slots=True, kw_only=True)
class FastestForm:
    """For each attention, the fastest form on which a runtime is right.

    Args:
        runtime: The runtime that will run the file.
        budget: Sizes and time for every attention that has no entry in `sizes`.
        sizes: Sizes by name of the attention, if the user sets some.
        cannot_hold: Returns why the graph cannot have an opset, as a clause; "" if it can.
        on_step: Called with the current step, for a progress line.
    """

    runtime: Runtime
    budget: RaceBudget = field(default_factory=RaceBudget)
    sizes: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    cannot_hold: Callable[[int], str] = lambda _: ""
    on_step: Callable[[str], None] = lambda _: None
    _chosen: dict[tuple[object, ...], FormChoice] = field(default_factory=dict, init=False)
    _by_name: dict[str, FormChoice] = field(default_factory=dict, init=False)

    @property
    def form(self) -> Form | None:
        """None: each attention may have a different form."""
        return None

    @property
    def word(self) -> str:
        """The chosen forms, joined by " + "."""
        labels = dict.fromkeys(choice.label for choice in self._by_name.values() if choice.candidate is not None)
        return " + ".join(labels)

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """The opset that the chosen form needs, at least `own`."""
        return max(own, self._choice(attention, own).opset)

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why no form is right; if another attention raised the opset of the graph, the form is probed again there."""
        choice = self._choice(attention, opset)
        if choice.candidate is None:
            return choice.reason
        if self._at(attention, opset) is not None:
            return None
        return f"The runtime is not right on {choice.label} at opset {opset}."

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:  # the arguments are those of the protocol
        """Always: the fastest form may differ from the one in the graph."""
        return True

    def write(self, graph: ir.Model, attention: GraphAttention, edits: GraphEdits) -> GraphAttention:
        """Write the chosen form."""
        opset = graph.opset_imports.get("", 0)
        return (self._at(attention, opset) or self._choice(attention, opset)).lower(graph, attention, edits)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return tuple(
            msgspec.structs.replace(record, site=name)
            for name, choice in self._by_name.items()
            for record in choice.records
        )

    @property
    def notes(self) -> Mapping[str, str]:
        """The table of reasons of each attention; a shared table is stored once, the others refer to it by name."""
        tables: dict[str, object] = {}
        for name, choice in self._by_name.items():
            first = next(one for one, other in self._by_name.items() if other is choice)
            tables[name] = choice.table if first == name else {"as": first}
        return {AUTO_KEY: msgspec.json.encode(tables, order="sorted").decode()}

    def _choice(self, attention: GraphAttention, opset: int) -> FormChoice:
        """The choice for an attention; made once for attentions with the same problem and sizes."""
        if attention.name in self._by_name:
            return self._by_name[attention.name]
        problem, sizes = problem_of(attention), self.sizes.get(attention.name, ())
        key = (problem, tuple(tuple(sorted(one.items())) for one in sizes))
        if key not in self._chosen:
            budget = replace(self.budget, sizes=sizes or self.budget.sizes)
            self._chosen[key] = choose_form(
                problem,
                self.runtime,
                opset=opset,
                budget=budget,
                cannot_hold=self.cannot_hold,
                site=attention.name,
                on_step=self.on_step,
            )
        self._by_name[attention.name] = self._chosen[key]
        return self._by_name[attention.name]

    def _at(self, attention: GraphAttention, opset: int) -> FormChoice | None:
        """The choice at the opset of the graph, or None if the runtime is wrong there."""
        choice = self._choice(attention, opset)
        return choice if choice.opset == opset else _choice_at_opset(choice, problem_of(attention), self.runtime, opset)


def _choice_at_opset(choice: FormChoice, problem: FormProblem, runtime: Runtime, opset: int) -> FormChoice | None:
    if choice.candidate is None:
        return None
    candidate = at_opset(problem, runtime, choice.candidate, opset)
    long = None if choice.long is None else at_opset(problem, runtime, choice.long, opset)
    if candidate is None or (choice.long is not None and long is None):
        return None
    return replace(choice, candidate=candidate, long=long)
