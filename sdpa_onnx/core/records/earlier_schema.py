"""Reads records of schema 1, which wrote a placeholder number where a figure is unknown: each is read as None.

Also compares such numbers in lists of known findings. Twin: the fields of the records, which default to None.
"""

from typing import TypeVar

import msgspec

from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.judge_records import ConformanceRecord, LocatedRecord
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.timing_records import TimingRecord
from sdpa_onnx.core.records.verdicts import Conformity, Outcome

__all__ = ["EARLIER_SCHEMA", "earlier_number", "without_placeholders"]

EARLIER_SCHEMA = 1

_AnyRecord = TypeVar("_AnyRecord", bound=BaseRecord)

# In schema 1, -1 was never a figure: it is unknown in every field of a record and of its sizes.
_UNKNOWN = -1

# Fields whose 0 was never a figure either, by the tag of the kind; "" for every kind.
_NEVER_ZERO: dict[str, frozenset[str]] = {
    "": frozenset(("opset",)),
    "timing": frozenset(
        (
            *("median_seconds", "median_low", "median_high", "wall_min_seconds", "calls", "blocks"),
            *("useful_flops", "executed_flops", "exps", "bytes_moved"),
        )
    ),
    "export": frozenset(("seconds",)),
    "conformance": frozenset(("path_nodes",)),
    "form": frozenset(("median_seconds", "ratio", "ratio_low", "ratio_high")),
    "gate": frozenset(("threads",)),
}

# What a record had in these fields if nothing was measured, and what it meant without them; in a record that was
# measured they are figures.
_IF_NOT_MEASURED: dict[str, dict[str, float]] = {
    "agreement": {
        "cosine": 1,
        **dict.fromkeys(("max_abs_error", "max_bound_ratio", "not_finite", "max_relative_error", "max_ulp_error"), 0),
        **dict.fromkeys(("judged_rows", "total_rows"), 0),
    },
    "timing": {
        "confidence": 0.95,
        "steady": True,
        **dict.fromkeys(("ratio", "ratio_low", "ratio_high", "launches"), 1),
        **dict.fromkeys(("disturbed", "launches_needed"), 0),
    },
    "export": {"sizes_tried": 0},
    "saturation": {"rows": 0, "draws": 0},
    "conformance": dict.fromkeys(("max_abs_error", "max_bound_ratio", "cases", "wrong_cases"), 0),
    "located": dict.fromkeys(("max_abs_error", "allowed", "judged", "not_judged"), 0),
    "attention": {"sizes_tried": 0},
    "form": {"probes": 0},
}


def without_placeholders(record: _AnyRecord) -> _AnyRecord:
    """A record of schema 1 with None in place of each placeholder number.

    Example:
        >>> without_placeholders(TimingRecord(outcome=Outcome.FAILED, ratio=1.0, first_seconds=-1.0)).ratio is None
        True
    """
    kind = str(record.__struct_config__.tag)
    zeros = _NEVER_ZERO[""] | _NEVER_ZERO.get(kind, frozenset())
    is_measured, given = _is_measured(record), _IF_NOT_MEASURED.get(kind, {})
    changed: dict[str, object] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, Sizes):
            changed[name] = _known_sizes(value)
        elif value is None:
            if is_measured and name in given:  # the version that wrote it had no such field
                changed[name] = given[name]
        elif isinstance(value, int | float) and (
            value == _UNKNOWN or (value == 0 and name in zeros) or (not is_measured and value == given.get(name))
        ):
            changed[name] = None
    return msgspec.structs.replace(record, **changed) if changed else record


def earlier_number(kind: str, name: str) -> frozenset[float]:
    """Numbers that schema 1 wrote in a field for "unknown"; lists of known findings contain them.

    Example:
        >>> sorted(earlier_number("agreement", "opset"))
        [-1, 0]
    """
    zeros = _NEVER_ZERO[""] | _NEVER_ZERO.get(kind, frozenset())
    given = _IF_NOT_MEASURED.get(kind, {})
    return frozenset((_UNKNOWN, *((0,) if name in zeros else ()), *((given[name],) if name in given else ())))


def _known_sizes(sizes: Sizes) -> Sizes:
    return msgspec.structs.replace(
        sizes, **{name: None for name in sizes.__struct_fields__ if getattr(sizes, name) == _UNKNOWN}
    )


def _is_measured(record: BaseRecord) -> bool:
    """Whether a record of schema 1 contains figures."""
    if record.outcome not in (Outcome.OK, Outcome.DISAGREES):
        return False
    match record:
        case TimingRecord():
            return bool(record.median_seconds)
        case ConformanceRecord():
            return record.verdict in (Conformity.RIGHT, Conformity.WRONG)
        case LocatedRecord():
            return bool(record.node)
        case FormRecord() | GateRecord():
            return True
        case _:
            return getattr(record, "verdict", record) is not None
