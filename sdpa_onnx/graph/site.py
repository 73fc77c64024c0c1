"""Locate an attention in a graph by the names of its input and output values. Holds no graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import MaskRule
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.core.judge.cache_agreement import CacheRule

__all__ = ["AttentionSite", "encode_sites"]

_FIELDS = {
    OutputRole.OUTPUT: "output",
    OutputRole.PRESENT_KEY: "present_key",
    OutputRole.PRESENT_VALUE: "present_value",
    OutputRole.PRESENT: "present",
    OutputRole.QK: "scores",
}
# Fields that the metadata of most files does not have.
_SELDOM = ("mask_band", "quantisers", "is_bound_by_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention of a model, by the names of its graph values.

    Written into the metadata of every exported model, so that a verification
    can read the inputs and the outputs of each attention, in any form. A model
    names the optional outputs anew from the places on its nodes (`site_outputs`), whatever the metadata says.

    Args:
        name: Unique in the model: module path or node name.
        spec: What it computes from these values.
        query: Value name; 4-D BNSH, or 3-D if the spec's layout says so.
        key: The same.
        value: The same.
        output: The same.
        attn_mask: Value name, or None.
        past_key: Value name, or None.
        past_value: Value name, or None.
        nonpad_kv_seqlen: Value name, or None.
        present_key: Value name, or None; the past, if there is one, followed by the new keys.
        present_value: The same for values.
        present: Both caches in one value, keys first, or None.
        scores: The scores (qk_matmul_output), or None.
        scores_mode: Stage of the scores.
        other_scores_modes: Further stages that they may be of, where the operator's text leaves it open.
        mask_rule: What a mask means whose last axis is 1.
        mask_band: Proved of its mask inside this model, see `GraphAttention`; None = nothing. A form may rely on it.
        quantisers: How its graph rounds scores and weights to integers; None = not at all.
        is_bound_by_mask: Its causality and windows are those of its mask inside this model; another mask has others.
        cache_lengths, cache_magnitudes: Value names, or None; see `CacheRule`.
        cache_terms: See `CacheRule`.
    """

    name: str
    spec: AttentionSpec
    query: str
    key: str
    value: str
    output: str
    attn_mask: str | None = None
    past_key: str | None = None
    past_value: str | None = None
    nonpad_kv_seqlen: str | None = None
    present_key: str | None = None
    present_value: str | None = None
    present: str | None = None
    scores: str | None = None
    scores_mode: QkOutputMode = QkOutputMode.SCORES
    other_scores_modes: tuple[QkOutputMode, ...] = ()
    mask_rule: MaskRule = MaskRule.PADDED
    mask_band: WindowBounds | None = None
    quantisers: ScoreQuantisers | None = None
    is_bound_by_mask: bool = False
    cache_lengths: str | None = None
    cache_magnitudes: str | None = None
    cache_terms: int = 0

    @property
    def inputs(self) -> dict[str, str]:
        """Value name by field name of `AttentionInputs`, without absent inputs."""
        fields = ("query", "key", "value", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        names = {field: getattr(self, field) for field in fields}
        return {field: name for field, name in names.items() if name is not None}

    @property
    def outputs(self) -> dict[OutputRole, str]:
        """Value name by what the output is, without absent outputs; the attention output is the first."""
        names = {role: getattr(self, field) for role, field in _FIELDS.items()}
        return {role: name for role, name in names.items() if name is not None}

    @property
    def scores_modes(self) -> tuple[QkOutputMode, ...]:
        """Every stage that the scores may be of."""
        return (self.scores_mode, *self.other_scores_modes)

    @property
    def taps(self) -> list[str]:
        """Names of all values that the judge reads."""
        optional = (self.cache_lengths, self.cache_magnitudes)
        return [*self.inputs.values(), *self.outputs.values(), *(name for name in optional if name is not None)]

    def with_outputs(self, names: Mapping[OutputRole, str]) -> "AttentionSite":
        """The site with these outputs and no other optional ones."""
        fields: dict[str, Any] = {field: names.get(role) for role, field in _FIELDS.items() if field != "output"}
        return replace(self, **fields)

    def arrays_in(self, arrays: Mapping[str, NDArray[np.generic]]) -> AttentionInputs:
        """The inputs of the attention among the arrays of a run."""
        found = {field: arrays[name] for field, name in self.inputs.items()}
        return AttentionInputs(**found, quantisers=self.quantisers)

    def outputs_in(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[OutputRole, NDArray[np.generic]]:
        """The outputs of the attention among the arrays of a run, those that are there."""
        return {role: arrays[name] for role, name in self.outputs.items() if name in arrays}

    def cache_rule_in(self, arrays: Mapping[str, NDArray[np.generic]]) -> CacheRule:
        """What the operator defines of its present outputs, among the arrays of a run."""
        lengths = arrays.get(self.cache_lengths or "")
        return CacheRule(
            lengths=None if lengths is None else lengths.reshape(-1),
            terms=self.cache_terms,
            magnitudes=arrays.get(self.cache_magnitudes or ""),
        )


def encode_sites(sites: Sequence[AttentionSite]) -> str:
    """Attentions as the JSON of the metadata, without what few of them have."""
    rows = [msgspec.to_builtins(site) for site in sites]
    return msgspec.json.encode([_without_unknown(row) for row in rows]).decode()


def _without_unknown(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in _SELDOM or value}
