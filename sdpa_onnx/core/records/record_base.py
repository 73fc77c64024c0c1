"""The fields that every record has, its `repr`, and the sizes that tables group by. Reads and writes no file.

A figure that is not known is None, in every record; a record that failed has no figures.
"""

from typing import TypeVar

import msgspec

from sdpa_onnx.core.records.one_line import one_line
from sdpa_onnx.core.records.verdicts import Conformity, Outcome, Verdict

__all__ = ["SCHEMA", "BaseRecord", "Sizes", "known"]

# Twin: earlier_schema.py, which reads records of schema 1.
SCHEMA = 2

_Figure = TypeVar("_Figure")


def known(figure: _Figure | None) -> _Figure:
    """A figure that every record of its outcome has, such as the median of a timing that is OK.

    Raises:
        ValueError: If it is None.
    """
    if figure is None:
        raise ValueError("A record without figures was read as one that has them.")
    return figure


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Fields that every record has. Its repr is one line; `rich.print` and `msgspec.structs.asdict` show every field.

    Args:
        schema: Version of this format.
        cell: sha256 of the cell (spec, sizes, dtype, form, opset, runtime,
            options, seed), hex; "" outside a run.
        job: The job that wrote it: the records of one job are valid only together.
        parts: Number of records that the job writes.
        case: Case id or target name, for people.
        target: What was exported or read: a use, `sdpa`, a class or a file.
        form: Graph form: decomposed or attention; "" if there is none (torch).
        opset: Operator-set version; None if there is none.
        runtime: Runtime name; "" if none ran.
        outcome: See `Outcome`.
        reason: Why it is not OK; "" if it is.
        warnings: Doubts, each one sentence.
    """

    schema: int = SCHEMA
    cell: str = ""
    job: str = ""
    parts: int = 1
    case: str = ""
    target: str = ""
    form: str = ""
    opset: int | None = None
    runtime: str = ""
    outcome: Outcome = Outcome.OK
    reason: str = ""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        reason = "" if self.outcome is Outcome.OK else self.reason
        return one_line(type(self).__name__, (self._result, self.runtime, *self._in_short, reason))

    @property
    def _result(self) -> str:
        """The verdict where the kind has one, else the outcome."""
        verdict = getattr(self, "verdict", None)
        return str(verdict) if isinstance(verdict, Verdict | Conformity) else self.outcome.value

    @property
    def _in_short(self) -> tuple[object, ...]:
        """What the repr shows after result and runtime: what the record is about, and its main figures."""
        return (self.case or self.target,)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a case that charts and tables group by; None = not applicable."""

    batch_size: int | None = None
    q_seq_len: int | None = None
    kv_seq_len: int | None = None
    head_dim: int | None = None
    q_num_heads: int | None = None
