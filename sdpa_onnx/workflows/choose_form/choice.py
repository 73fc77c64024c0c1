"""Define the form chosen for an attention, with the records of every candidate and the reasons.

Does not choose: `choose` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.form_choice import TIE, fastest_simple_arm
from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.record_base import Sizes
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.by_length import Branch, lower_by_length
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.race_time import FormRace, RaceTime

__all__ = ["FormCandidate", "FormChoice", "named", "sizes_text", "timed_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCandidate:
    """One form with its options, on which the runtime is right.

    Args:
        arm: Its name in the table.
        form: The form.
        opset: The opset that it needs, at least the one of the file.
        options: The options with which it is written, including workarounds.
        record: The record of its probes.
    """

    arm: str
    form: Form
    opset: int
    options: LowerOptions
    record: FormRecord

    @property
    def branch(self) -> Branch:
        return Branch(form=self.form, options=self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoice:
    """The chosen form, and the table of reasons.

    Args:
        records: One or more for every arm: the result of its probes, or its time at each size.
        candidate: The form to write, or the one for short sequences; None if the runtime is right on no form.
        long: The form for more than `at` queries; None = `candidate` at every length.
        at: Largest number of queries for `candidate`, if there is a `long`.
        version: Version of the runtime.
    """

    records: tuple[FormRecord, ...]
    candidate: FormCandidate | None
    long: FormCandidate | None = None
    at: int = 0
    version: str = ""

    @property
    def opset(self) -> int:
        """The opset that the model needs."""
        return max((one.opset for one in (self.candidate, self.long) if one is not None), default=0)

    @property
    def label(self) -> str:
        """The choice as text."""
        if self.candidate is None:
            return "no form"
        if self.long is None:
            return self.candidate.arm
        return f"{self.candidate.arm} up to {self.at} queries, {self.long.arm} beyond"

    @property
    def reason(self) -> str:
        """Why there is no form, one sentence each; "" if there is one."""
        return "" if self.candidate else " ".join(dict.fromkeys(record.reason for record in self.records))

    @property
    def table(self) -> dict[str, object]:
        """The choice and its records as plain JSON types, for the model's metadata."""
        return {"chosen": self.label, "version": self.version, "tried": msgspec.to_builtins(self.records)}

    def lower(self, model: ir.Model, attention: GraphAttention, edits: GraphEdits | None = None) -> GraphAttention:
        """Write the chosen form into a graph whose opset is at least `opset`.

        Raises:
            ValueError: If no form was chosen; check `candidate` first.
        """
        if self.candidate is None:
            raise ValueError(self.reason)
        if self.long is None:
            return lower(model, attention, self.candidate.form, self.candidate.options, edits=edits)
        return lower_by_length(
            model, attention, short=self.candidate.branch, long=self.long.branch, at=self.at, edits=edits
        )


def named(choice: FormChoice, runtime: Runtime, site: str) -> FormChoice:
    """Add the name of the attention to the records of a choice, and the version of the runtime."""
    rows = tuple(msgspec.structs.replace(row, site=site) for row in choice.records)
    return replace(choice, records=rows, version=runtime.version())


def timed_rows(
    candidates: Sequence[FormCandidate],
    races: Sequence[FormRace],
    choice: FormChoice,
    *,
    spec: AttentionSpec,
    threads: int,
) -> list[FormRecord]:
    """One record for each candidate and set of sizes."""
    rows = []
    for race_ in races:
        chosen = choice.long if choice.long is not None and race_.sizes["q_seq_len"] > choice.at else choice.candidate
        for candidate in candidates:
            time = race_.times[candidate.arm]
            is_chosen = chosen is not None and candidate.arm == chosen.arm
            rows.append(
                msgspec.structs.replace(
                    candidate.record,
                    sizes=_sizes(race_.sizes, spec),
                    past_seq_len=race_.sizes.get("past_seq_len"),
                    threads=threads,
                    median_seconds=None if time.failure else time.seconds,
                    ratio=None if time.failure else time.ratio,
                    ratio_low=None if time.failure else time.ratio_low,
                    ratio_high=None if time.failure else time.ratio_high,
                    chosen=is_chosen,
                    outcome=Outcome.FAILED if time.failure else Outcome.OK,
                    reason="" if is_chosen else _rejection(time, race_, choice),
                )
            )
    return rows


def _rejection(time: RaceTime, race_: FormRace, choice: FormChoice) -> str:
    """Why a candidate was not chosen at one set of sizes, one sentence."""
    if time.failure:
        return time.failure
    if time.is_rough:
        return f"{time.ratio:.2f} x the fastest in its first calls; not measured further."
    best = fastest_simple_arm(race_.raced)
    if time.ratio_low > TIE:
        return f"{time.ratio:.2f} x the fastest."
    return f"As fast as '{best.arm}' within the interval; '{choice.label}' is simpler or better over all sizes."


def _sizes(sizes: Mapping[str, int], spec: AttentionSpec) -> Sizes:
    return Sizes(
        batch_size=sizes["batch_size"],
        q_seq_len=sizes["q_seq_len"],
        kv_seq_len=sizes["kv_seq_len"],
        head_dim=spec.head_dim,
        q_num_heads=spec.q_num_heads,
    )


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Format sizes as text, such as "q_seq_len 5, kv_seq_len 7"."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
