"""Why a conversion differs where a mask hides every key of a query, and what to do. Judges nothing."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import AgreementRecord, Outcome
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.convert.paired_runs import HIDDEN_ROWS

__all__ = ["hides_all", "hint_of_empty_rows"]

Array = NDArray[np.generic]


def hides_all(mask: Array | None) -> bool:
    """Whether a mask, boolean or added, hides every key of some query: by False, -inf, or half the lowest number."""
    if mask is None or mask.ndim == 0 or not mask.size:
        return False
    if mask.dtype == np.bool_:
        return bool((~mask.any(axis=-1)).any())
    lowest = float(ml_dtypes.finfo(mask.dtype).min)  # type: ignore[no-untyped-call]  # it has no types
    return bool((mask.astype(np.float64) <= lowest / 2).all(axis=-1).any())


def hint_of_empty_rows(
    sites: Sequence[AttentionSite], values: Feeds, records: Sequence[AgreementRecord], *, rows_may_be_empty: bool
) -> str:
    """One sentence for a refusal: the attention and its mask, why such a query differs, and what to do; "" if none do.

    Args:
        sites: The attentions of the source.
        values: The source's values in the run with hidden rows.
        records: All judgements of the conversion.
        rows_may_be_empty: Whether the conversion was made without `--no-empty-rows`.
    """
    bad = [record for record in records if record.outcome is not Outcome.OK]
    if not any(record.inputs == HIDDEN_ROWS for record in bad):
        return ""
    for site in sites:
        name = site.inputs.get("attn_mask")
        mask = None if name is None else values.get(name)
        if mask is not None and hides_all(mask):
            subject = f"Attention '{site.name}': its mask '{name}'"
            if not rows_may_be_empty:
                return f"{subject} hides every key of a query in the file itself, so leave out --no-empty-rows."
            others = any(record.inputs != HIDDEN_ROWS for record in bad)
            advice = _advice(mask, others=others)
            return f"{subject} can hide every key of a query {_by(mask)}, and such a query differs: {advice}."
    return ""


def _by(mask: Array) -> str:
    """The number that hides, and what float16 makes of it."""
    if mask.dtype == np.bool_:
        return "by False"
    lowest = mask.astype(np.float64).min()
    if mask.dtype != np.float16:
        return f"by {lowest:.3g}"
    if np.isneginf(lowest):
        return "by -inf, which float16 makes of float32's lowest number"
    return f"by {lowest:g}, float16's lowest number, next to which large scores still count"


def _advice(mask: Array, *, others: bool) -> str:
    """What keeps the source's numbers.

    Where float16 makes -inf of float32's lowest number, no form that was tried does (onnxruntime 1.32).
    """
    is_lost = mask.dtype == np.float16 and bool(np.isneginf(mask.astype(np.float64)).any())
    safe = "convert the float32 file, then make it float16" if is_lost else f"use --form {Form.DECOMPOSED}"
    if others:
        return f"{safe}, since other inputs differ too"
    return f"use --no-empty-rows if no input of yours does that, else {safe.removeprefix('use ')}"
