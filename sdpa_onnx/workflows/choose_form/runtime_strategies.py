"""Ways of writing that ask a runtime: one form as the runtime needs it, or for each attention the fastest.

What they find is kept for the records and the metadata of the model; no model is converted here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import needed_opset, refusal
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.choice import FormChoice
from sdpa_onnx.workflows.choose_form.choose import RaceBudget, choose_form, raised
from sdpa_onnx.workflows.choose_form.form_strategy import AUTO_KEY, WORKAROUNDS_KEY, FixedForm
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, problem_of
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, WorkableForm, workable

__all__ = ["FastestForm", "RuntimeForm"]


@dataclass(slots=True, kw_only=True)
class RuntimeForm:
    """One form, written so that a runtime gets it right; an attention that it gets wrong is refused with the evidence.

    Args:
        runtime: That is asked; one process of its own for all questions is the caller's to give.
        form: The form.
        options: What is chosen within it; workarounds are added.
        asks: Asks a runtime; a parameter for tests.
    """

    runtime: Runtime
    form: Form
    options: LowerOptions = field(default_factory=LowerOptions)
    asks: Callable[..., WorkableForm | RefusedForm] = workable
    _found: dict[tuple[str, int], WorkableForm | RefusedForm] = field(default_factory=dict, init=False)

    @property
    def word(self) -> str:
        return self.form.value

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """As the form says."""
        return max(own, needed_opset(attention, self.form, self.options))

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """What the form cannot say, or what the runtime gets wrong whatever is worked around."""
        plain = refusal(attention, self.form, opset=opset, options=self.options)
        if plain is not None:
            return plain
        found = self._ask(attention, opset)
        return found.reason if isinstance(found, RefusedForm) else None

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:
        """Where the runtime needs a workaround, or gets it wrong whatever is done."""
        found = self._ask(attention, opset)
        return isinstance(found, RefusedForm) or found.options.workarounds != self.options.workarounds

    def write(self, graph: ir.Model, attention: GraphAttention) -> GraphAttention:
        """Write the form with the workarounds that this attention needs."""
        found = self._ask(attention, graph.opset_imports.get("", 0))
        options = found.options if isinstance(found, WorkableForm) else self.options
        return FixedForm(form=self.form, options=options).write(graph, attention)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return tuple(msgspec.structs.replace(found.record, site=name) for (name, _), found in self._found.items())

    @property
    def notes(self) -> Mapping[str, str]:
        """The workarounds, so that a reader knows why the graph is as it is."""
        taken = {record.site: record.workarounds for record in self.records if record.workarounds}
        return {WORKAROUNDS_KEY: msgspec.json.encode(taken, order="sorted").decode()} if taken else {}

    def _ask(self, attention: GraphAttention, opset: int) -> WorkableForm | RefusedForm:
        key = (attention.name, opset)
        if key not in self._found:
            problem = problem_of(attention)
            self._found[key] = self.asks(self.runtime, problem, self.form, opset=opset, options=self.options)
        return self._found[key]


@dataclass(slots=True, kw_only=True)
class FastestForm:
    """For each attention the form that is right and fastest on a runtime.

    Args:
        runtime: Where the file will run.
        budget: What is timed of each attention whose sizes are not given by name.
        sizes: Sizes of an attention by its name, where the user has named some.
        cannot_hold: Why the graph cannot get an opset, as a clause; "" if it can.
        on_step: Told what is being done.
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
        """None: each attention has its own."""
        return None

    @property
    def word(self) -> str:
        """The forms that were chosen, joined."""
        words = dict.fromkeys(choice.word for choice in self._by_name.values() if choice.way is not None)
        return " + ".join(words)

    def needed_opset(self, attention: GraphAttention, *, own: int) -> int:
        """What the chosen form needs."""
        return max(own, self._choice(attention, own).opset)

    def refusal(self, attention: GraphAttention, *, opset: int) -> str | None:
        """Why no form is right; that of a graph whose opset another attention has raised is asked again there."""
        choice = self._choice(attention, opset)
        if choice.way is None:
            return choice.reason
        return None if self._at(attention, opset) is not None else f"{choice.word} is not right at opset {opset}."

    def is_due(self, attention: GraphAttention, *, opset: int) -> bool:  # every way is asked alike
        """Always."""
        return True

    def write(self, graph: ir.Model, attention: GraphAttention) -> GraphAttention:
        """Write the chosen form."""
        opset = graph.opset_imports.get("", 0)
        return (self._at(attention, opset) or self._choice(attention, opset)).lower(graph, attention)

    @property
    def records(self) -> tuple[FormRecord, ...]:
        return tuple(
            msgspec.structs.replace(record, site=name)
            for name, choice in self._by_name.items()
            for record in choice.records
        )

    @property
    def notes(self) -> Mapping[str, str]:
        """The table of reasons of each attention; what several share stands there once, and its name with the rest."""
        tables: dict[str, object] = {}
        for name, choice in self._by_name.items():
            first = next(one for one, other in self._by_name.items() if other is choice)
            tables[name] = choice.table if first == name else {"as": first}
        return {AUTO_KEY: msgspec.json.encode(tables, order="sorted").decode()}

    def _choice(self, attention: GraphAttention, opset: int) -> FormChoice:
        """Made once for attentions that ask the same."""
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
        """The choice at a graph's opset, or None if it is not right there."""
        choice = self._choice(attention, opset)
        return choice if choice.opset == opset else _raised_choice(choice, problem_of(attention), self.runtime, opset)


def _raised_choice(choice: FormChoice, problem: FormProblem, runtime: Runtime, opset: int) -> FormChoice | None:
    if choice.way is None:
        return None
    way = raised(problem, runtime, choice.way, opset)
    long = None if choice.long is None else raised(problem, runtime, choice.long, opset)
    if way is None or (choice.long is not None and long is None):
        return None
    return replace(choice, way=way, long=long)
