"""The records of a run, one per line of JSON, each with its schema, kind and outcome.

Names contain the units; an unknown value is None and has a reason. Does not
read or write files: the store does.
"""

import math
from typing import Any, TypeVar

import msgspec

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.core.attention.spec import AttentionSpec, parse_case_id
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.core.records.baked import BakedAxis, BakedSetting
from sdpa_onnx.core.records.earlier_schema import EARLIER_SCHEMA, without_placeholders
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.judge_records import ConformanceRecord, LocatedRecord, PlantedRecord
from sdpa_onnx.core.records.not_finite import NOT_FINITE_HINT, not_finite_number
from sdpa_onnx.core.records.record_base import SCHEMA, BaseRecord, Sizes
from sdpa_onnx.core.records.subject import Subject, from_earlier_site
from sdpa_onnx.core.records.timing_records import TimingRecord
from sdpa_onnx.core.records.timing_validity import impossible
from sdpa_onnx.core.records.verdicts import Conformity, Outcome, RatioVerdict, Verdict, outcome_of_error
from sdpa_onnx.errors import RecordFormatError

__all__ = [
    "BUDGET_REASON",
    "SCHEMA",
    "AgreementRecord",
    "AttentionRecord",
    "BakedAxis",
    "BakedSetting",
    "ConformanceRecord",
    "Conformity",
    "ExportRecord",
    "FormRecord",
    "GateRecord",
    "LocatedRecord",
    "MeasuredValue",
    "Outcome",
    "PlantedRecord",
    "RatioVerdict",
    "Record",
    "RuntimeRecord",
    "SaturationRecord",
    "Sizes",
    "Subject",
    "TimingRecord",
    "Verdict",
    "decode_record",
    "encode_record",
    "in_current_schema",
    "is_beyond_budget",
    "outcome_of_error",
    "require_finite",
]

# Of a cell that was skipped because the time limit of its command did not reach it; resuming the run does it.
BUDGET_REASON = "budget"


class AgreementRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="agreement"):
    """One output of one attention judged against the float64 oracle.

    Args:
        spec, past_seq_len: What the case computes and the keys in its cache, if it is one attention by itself;
            None for a larger model.
        subject: What is judged; site: its name, "" if the model failed.
        sizes: Sizes it was judged at.
        axes: Sizes of the named axes of the model there; empty if unknown.
        dtype: Element type.
        precision: The declared arithmetic.
        verdict: The verdict of the judge, or None if nothing was judged.
        max_abs_error: Largest `|actual - oracle|`; None if nothing was judged, like all figures.
        max_bound_ratio: Largest `|actual - oracle|` over its own proven bound; above 1 is a proof of a
            fault. For an output of the model it is the error over its limit.
        not_finite: Elements that are NaN or infinite without cause; they have no ratio.
        kappa: Root mean square of error / sigma over the elements judged statistically; at most about 1
            if the declared arithmetic ran; None if none was.
        max_z: Largest `|error|` / sigma among them; None if none was.
        max_relative_error, max_ulp_error, cosine: Printed for comparison, never decide.
        diagnosis: The evidence, one sentence.
        inputs: Ladder step, probe or sizes of the inputs.
        spread: Standard deviation of the logits, or None if the module's own.
        seed: Seed of the inputs.
        judged_rows, total_rows: Number of rows (batch, head, query) judged and present.
        scale_error_proven: Smallest relative error of the scale that this
            judgement proves wrong (METHOD A), or None if not computed.
        scale_note: The scale of the attention if it follows no known rule of d_k, see `unusual_scale`; else "".
        ran: Operator types that ran, with their node counts.
        expanded: Operators that the runtime replaced by their body, with the number of nodes of each.
        fused: Operators that ran and are not in the model, with their node counts.
        providers: Nodes per execution provider.
        sequence: Sizes of the model's axes in each run of the session, if it is wrong only after other runs; the last
            run is judged. () = it does not depend on other runs.
    """

    spec: AttentionSpec | None = None
    past_seq_len: int | None = None
    subject: Subject = Subject.ATTENTION
    site: str = ""
    sizes: Sizes = Sizes()
    axes: dict[str, int] = msgspec.field(default_factory=dict)
    dtype: str = ""
    precision: str = ""
    verdict: Verdict | None = None
    max_abs_error: float | None = None
    max_bound_ratio: float | None = None
    not_finite: int | None = None
    max_relative_error: float | None = None
    max_ulp_error: float | None = None
    cosine: float | None = None
    diagnosis: str = ""
    inputs: str = ""
    spread: float | None = None
    seed: int = 0
    judged_rows: int | None = None
    total_rows: int | None = None
    scale_error_proven: float | None = None
    scale_note: str = ""
    kappa: float | None = None
    max_z: float | None = None
    ran: dict[str, int] = msgspec.field(default_factory=dict)
    expanded: dict[str, int] = msgspec.field(default_factory=dict)
    fused: dict[str, int] = msgspec.field(default_factory=dict)
    providers: dict[str, int] = msgspec.field(default_factory=dict)
    sequence: tuple[dict[str, int], ...] = ()

    @property
    def _in_short(self) -> tuple[object, ...]:
        limit = "limit" if self.subject is Subject.OUTPUT else "bound"
        share = "" if self.max_bound_ratio is None else f"{self.max_bound_ratio:.3g} of {limit}"
        return (self.case or self.target, self.site, self.inputs, share)


class ExportRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="export"):
    """One export, with the proof of its dynamic axes.

    Args:
        dynamic_axes: Names of the axes that may change.
        limits: The sizes that they may have, with the values at the edges that were run.
        baked: Axes that were found fixed.
        settings: Settings of attentions that were found fixed.
        sizes_tried: Number of untraced sizes that were run; None if unknown.
        longest: The longest length among them; None if unknown, 0 where no length may change.
        untested: Numbers with which the graph compares lengths or positions and that no length tried goes beyond.
        nodes: Nodes per operator type as saved.
        seconds: Wall time of the export; None if nothing was exported.
        model: File or content hash.
    """

    dynamic_axes: tuple[str, ...] = ()
    limits: tuple[AxisLimit, ...] = ()
    baked: tuple[BakedAxis, ...] = ()
    settings: tuple[BakedSetting, ...] = ()
    sizes_tried: int | None = None
    longest: int | None = None
    untested: tuple[int, ...] = ()
    nodes: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float | None = None
    model: str = ""

    @property
    def _in_short(self) -> tuple[object, ...]:
        axes = f"dynamic {' '.join(self.dynamic_axes)}" if self.dynamic_axes else ""
        sizes = "" if self.sizes_tried is None else f"{self.sizes_tried} sizes tried"
        return (self.case or self.target, self.form, f"opset {self.opset}" if self.opset else "", axes, sizes)


class AttentionRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """One attention found in a model by `inspect`.

    Args:
        node: Its name in the graph.
        dialect: How it is written.
        spec: What it computes, or None if it cannot be read.
        mask_band: Proved of a float mask that is kept: it hides all keys outside these bounds, and maybe others.
        quantised: What its graph rounds to integers between its products: "scores and weights quantized"; "" = nothing.
        dynamic_axes: Names of the axes of the graph that may change.
        limits: The sizes that they may have, as in an export.
        baked: Axes of the graph that were found fixed by running it.
        static_axes: Batch and sequence axes that the file declares fixed, each one clause.
        scale_doubt: Why the scale may belong to one length only; "" without doubt.
        sizes_tried: Size sets that were run; None if none was.
        converted_to: The form that `convert` wrote; "" if it stays unchanged.
    """

    node: str = ""
    dialect: str = ""
    spec: AttentionSpec | None = None
    mask_band: WindowBounds | None = None
    quantised: str = ""
    dynamic_axes: tuple[str, ...] = ()
    limits: tuple[AxisLimit, ...] = ()
    baked: tuple[BakedAxis, ...] = ()
    static_axes: tuple[str, ...] = ()
    scale_doubt: str = ""
    sizes_tried: int | None = None
    converted_to: str = ""

    @property
    def _in_short(self) -> tuple[object, ...]:
        spec = self.spec
        heads = () if spec is None else (f"{spec.q_num_heads} heads", f"d_k {spec.head_dim}")
        return (self.node, self.dialect, *heads, "causal" if spec is not None and spec.is_causal else "")


class RuntimeRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="runtime"):
    """One runtime on this machine."""

    version: str = ""
    measures_time: bool = True

    @property
    def _in_short(self) -> tuple[object, ...]:
        return (self.version,)


class MeasuredValue(msgspec.Struct, frozen=True, kw_only=True):
    """A measured number and its prediction.

    Args:
        value: As measured.
        predicted: Exact prediction at this size, or None if there is none.
        standard_error: Of the measured value, from independent draws of the keys.
        z: Deviation in standard errors, transformed to the normal scale for the number of draws, or None.
    """

    value: float
    predicted: float | None = None
    standard_error: float | None = None
    z: float | None = None


class SaturationRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="saturation"):
    """Effect of one scale rule on the softmax at one width and length.

    Args:
        scale_rule: "none", "1/sqrt(d_k)" or "1/d_k".
        head_dim: d_k; None if the cell failed before it was known, like the next.
        kv_seq_len: Keys of a row.
        sigma: Standard deviation of the components of query and key.
        dtype: Element type of the weights measured.
        rows: Rows measured, over all draws; None if the cell failed.
        draws: Independent draws of the keys; None if the cell failed.
        measures: Name -> measured and predicted; names are those of `core.saturation.measures`.
    """

    scale_rule: str = ""
    head_dim: int | None = None
    kv_seq_len: int | None = None
    sigma: float | None = None
    dtype: str = ""
    rows: int | None = None
    draws: int | None = None
    measures: dict[str, MeasuredValue] = msgspec.field(default_factory=dict)

    @property
    def _in_short(self) -> tuple[object, ...]:
        widths = (f"d_k {self.head_dim}", f"{self.kv_seq_len} keys") if self.head_dim is not None else ()
        return (self.target, f"scale {self.scale_rule}" if self.scale_rule else "", *widths)


Record = (
    AgreementRecord
    | TimingRecord
    | ExportRecord
    | SaturationRecord
    | ConformanceRecord
    | PlantedRecord
    | LocatedRecord
    | AttentionRecord
    | RuntimeRecord
    | FormRecord
    | GateRecord
)


_AnyRecord = TypeVar("_AnyRecord", bound=BaseRecord)


def is_beyond_budget(record: Record) -> bool:
    """Whether a cell was skipped because the time limit of its command did not reach it."""
    return record.outcome is Outcome.SKIPPED and record.reason == BUDGET_REASON


def encode_record(record: Record) -> bytes:
    """One line of JSON, without the newline; equal records have equal bytes."""
    return msgspec.json.encode(record, order="sorted")


def require_finite(record: Record) -> None:
    """Refuse a record that JSON cannot represent.

    Raises:
        RecordFormatError: If a number is NaN or infinite; its field is named.
    """
    for name, value in msgspec.structs.asdict(record).items():
        numbers = [value]
        if isinstance(value, dict):
            numbers = [getattr(one, "value", one) for one in value.values()]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise RecordFormatError(f"The {name} of {record.case or record.target} is not a finite number.")


def decode_record(line: bytes, *, where: str) -> Record:
    """Decode one line.

    Raises:
        RecordFormatError: If the line is no record, or a timing with impossible figures; names `where` (file:line).
    """
    try:
        record: Record = msgspec.json.decode(line, type=Record)
    except msgspec.MsgspecError as error:
        if number := not_finite_number(line):
            raise RecordFormatError(f"{where}: {number}.", hint=NOT_FINITE_HINT) from error
        raise RecordFormatError(f"{where}: {error}.") from error
    except UnicodeDecodeError as error:  # older msgspec does not convert it
        raise RecordFormatError(f"{where}: Invalid UTF-8 encoded string.") from error
    except RecursionError as error:
        raise RecordFormatError(f"{where}: it is nested too deeply.") from error
    record = _completed(in_current_schema(record, where=f"{where}: the"), msgspec.json.decode(line, type=_LaterFields))
    if isinstance(record, TimingRecord) and (fault := impossible(record)):
        raise RecordFormatError(f"{where}: {fault}.")
    return record


def in_current_schema(record: _AnyRecord, *, where: str) -> _AnyRecord:
    """A record as read, in the current schema: earlier ones have numbers where a figure is unknown.

    Raises:
        RecordFormatError: If its schema is neither current nor earlier; starts with `where`.
    """
    if record.schema == EARLIER_SCHEMA:
        return msgspec.structs.replace(without_placeholders(record), schema=SCHEMA)
    if record.schema != SCHEMA:
        raise RecordFormatError(
            f"{where} record has schema {record.schema}, this version reads {EARLIER_SCHEMA} and {SCHEMA}.",
            hint="Read it with the version of sdpa_onnx that wrote it.",
        )
    return record


class _LaterFields(msgspec.Struct, frozen=True):
    """Fields that records of earlier versions lack; UNSET if a line lacks them."""

    subject: str | msgspec.UnsetType = msgspec.UNSET
    spec: dict[str, object] | msgspec.UnsetType | None = msgspec.UNSET


def _completed(record: Record, later: _LaterFields) -> Record:
    """The record with the later fields filled in, from the fields that earlier versions wrote instead."""
    if later.subject is msgspec.UNSET and isinstance(record, AgreementRecord | LocatedRecord | GateRecord):
        subject, site = from_earlier_site(record.site)
        record = msgspec.structs.replace(record, subject=subject, site=site)
    if later.spec is msgspec.UNSET and isinstance(record, AgreementRecord | TimingRecord | GateRecord):
        case = parse_case_id(record.case)
        if case is not None:
            past = case.past_seq_len if case.spec.has_past else None
            record = msgspec.structs.replace(record, spec=case.spec, past_seq_len=past)
    return record


def to_builtins(record: Record) -> dict[str, Any]:
    """The record as plain dicts and lists, for `--json`."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain
