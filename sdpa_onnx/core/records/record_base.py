"""The fields that every record has, and the sizes that tables group by. Reads and writes no file."""

import msgspec

from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["SCHEMA", "BaseRecord", "Sizes"]

SCHEMA = 1


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that every record has.

    Args:
        schema: Version of this format.
        cell: sha256 of the cell (spec, sizes, dtype, form, opset, runtime,
            options, seed), hex; "" outside a run.
        job: The job that wrote it: the records of one job are valid only together.
        parts: Number of records that the job writes.
        case: Case id or target name, for people.
        target: What was exported or read: a use, `sdpa`, a class or a file.
        form: Graph form: decomposed or attention; "" if there is none (torch).
        opset: Operator-set version; 0 if there is none.
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
    opset: int = 0
    runtime: str = ""
    outcome: Outcome = Outcome.OK
    reason: str = ""
    warnings: tuple[str, ...] = ()


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a case that charts and tables group by; -1 = not applicable."""

    batch_size: int = -1
    q_seq_len: int = -1
    kv_seq_len: int = -1
    head_dim: int = -1
    q_num_heads: int = -1
