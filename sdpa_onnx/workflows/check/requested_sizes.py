"""The meaning of sizes that a user requests, with `--at` or `--size`, for every command: which axes they set.

Chooses no sizes for a proof: `workflows.verify.axis_links` does.
"""

from collections.abc import Mapping, Sequence

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import ModelFacts

__all__ = ["require_axes", "timed_sizes", "with_key_length"]

# Sizes of axes of a timing that the user does not name.
_BATCH_SIZE, _SEQ_LEN = 1, 512


def with_key_length(facts: ModelFacts, given: Mapping[str, int]) -> dict[str, int]:
    """The requested sizes; as many keys as queries if only the number of queries is named.

    That is self-attention. A file states no more than its axes, so cross-attention of another key length names both.

    Args:
        facts: Of the graph; other axes than q_seq_len and kv_seq_len are independent.
        given: Sizes that the user names.
    """
    if "q_seq_len" in given and "kv_seq_len" in facts.axes:
        return {"kv_seq_len": given["q_seq_len"], **given}
    return dict(given)


def timed_sizes(model: OnnxModel, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of every axis for a timing: the requested ones, else batch 1 and length 512.

    Args:
        model: Its named axes are sized.
        given: Sizes that the user names, see `with_key_length`.

    Raises:
        PlanError: If a size names no axis.
    """
    require_axes(model.facts, [given])
    batches = model.facts.batch_axes
    usual = {
        axis: _BATCH_SIZE if axis in batches or axis.startswith("batch") else _SEQ_LEN for axis in model.facts.axes
    }
    return {**usual, **with_key_length(model.facts, given)}


def require_axes(facts: ModelFacts, requested: Sequence[Mapping[str, int]]) -> None:
    """Refuse a requested size that names no axis.

    Raises:
        PlanError: If there is one.
    """
    unknown = [axis for sizes in requested for axis in sizes if axis not in facts.axes]
    if unknown:
        raise PlanError(f"The model has no axis '{unknown[0]}'.", hint=f"It has {', '.join(facts.axes) or 'none'}.")
