"""What was chosen among the forms of an attention, with its table of reasons. Chooses nothing itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.form_choice import TIE, winner
from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.record_base import Sizes
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.by_length import Branch, lower_by_length
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.race import FormRace, RaceTime

__all__ = ["FormCandidate", "FormChoice", "named", "size_words", "timed_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCandidate:
    """One way of writing an attention that the runtime gets right.

    Args:
        arm: Its name in the table.
        form: The form.
        opset: That it needs, at least the one asked for.
        options: How it is written, workarounds included.
        record: What its probes said.
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
    """What was chosen, and the table of reasons.

    Args:
        records: Every arm: what its probes said, or how it ran at each size.
        way: The one to write, or the one for short sequences; None if the runtime gets no form right.
        long: The one for more queries than `at`; None = `way` at every length.
        at: Queries up to which `way` holds, if there is a `long`.
        version: Of the runtime.
    """

    records: tuple[FormRecord, ...]
    way: FormCandidate | None
    long: FormCandidate | None = None
    at: int = 0
    version: str = ""

    @property
    def opset(self) -> int:
        """That the model needs."""
        return max((way.opset for way in (self.way, self.long) if way is not None), default=0)

    @property
    def word(self) -> str:
        """The choice in words."""
        if self.way is None:
            return "no form"
        if self.long is None:
            return self.way.arm
        return f"{self.way.arm} up to {self.at} queries, {self.long.arm} beyond"

    @property
    def reason(self) -> str:
        """Why there is no form, one sentence each; "" if there is one."""
        return "" if self.way else " ".join(dict.fromkeys(record.reason for record in self.records))

    @property
    def table(self) -> dict[str, object]:
        """The choice and its reasons in plain words and figures, for the model's metadata."""
        return {"chosen": self.word, "version": self.version, "tried": msgspec.to_builtins(self.records)}

    def lower(self, model: ir.Model, attention: GraphAttention) -> GraphAttention:
        """Write the choice into a graph whose opset is at least `opset`.

        Raises:
            ValueError: If there is no choice; ask `way` first.
        """
        if self.way is None:
            raise ValueError(self.reason)
        if self.long is None:
            return lower(model, attention, self.way.form, self.way.options)
        return lower_by_length(model, attention, short=self.way.branch, long=self.long.branch, at=self.at)


def named(choice: FormChoice, runtime: Runtime, site: str) -> FormChoice:
    """The choice with the attention's name on its records, and the runtime's version."""
    rows = tuple(msgspec.structs.replace(row, site=site) for row in choice.records)
    return replace(choice, records=rows, version=runtime.version())


def timed_rows(
    ways: Sequence[FormCandidate], races: Sequence[FormRace], choice: FormChoice, *, spec: AttentionSpec, threads: int
) -> list[FormRecord]:
    """One record for each way and set of sizes."""
    rows = []
    for race_ in races:
        chosen = choice.long if choice.long is not None and race_.sizes["q_seq_len"] > choice.at else choice.way
        for way in ways:
            lap = race_.laps[way.arm]
            is_chosen = chosen is not None and way.arm == chosen.arm
            rows.append(
                msgspec.structs.replace(
                    way.record,
                    sizes=_sizes(race_.sizes, spec),
                    past_seq_len=race_.sizes.get("past_seq_len", -1),
                    threads=threads,
                    median_seconds=lap.seconds,
                    ratio=lap.ratio,
                    ratio_low=lap.ratio_low,
                    ratio_high=lap.ratio_high,
                    chosen=is_chosen,
                    outcome=Outcome.FAILED if lap.failure else Outcome.OK,
                    reason="" if is_chosen else _why_not(lap, race_, choice),
                )
            )
    return rows


def _why_not(lap: RaceTime, race_: FormRace, choice: FormChoice) -> str:
    """Why a way was not chosen at one set of sizes, one sentence."""
    if lap.failure:
        return lap.failure
    if lap.left_behind:
        return f"{lap.ratio:.2f} x the fastest in its first calls; not measured further."
    best = winner(race_.raced)
    if lap.ratio_low > TIE:
        return f"{lap.ratio:.2f} x the fastest."
    return f"As fast as '{best.arm}' within the interval; '{choice.word}' is simpler or better over all sizes."


def _sizes(sizes: Mapping[str, int], spec: AttentionSpec) -> Sizes:
    return Sizes(
        batch_size=sizes["batch_size"],
        q_seq_len=sizes["q_seq_len"],
        kv_seq_len=sizes["kv_seq_len"],
        head_dim=spec.head_dim,
        q_num_heads=spec.q_num_heads,
    )


def size_words(sizes: Mapping[str, int]) -> str:
    """Sizes for people."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
