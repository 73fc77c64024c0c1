"""List the conformance features and select the rows to run.

Does not run them.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.conformance.contrib_features import CONTRIB_FEATURES
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
from sdpa_onnx.workflows.conformance.form_features import FORM_FEATURES
from sdpa_onnx.workflows.conformance.mask_features import MASK_FEATURES
from sdpa_onnx.workflows.conformance.past_features import PAST_FEATURES
from sdpa_onnx.workflows.conformance.plain_features import PLAIN_FEATURES
from sdpa_onnx.workflows.conformance.session_features import SESSION_FEATURES

__all__ = ["OPSETS", "FeatureRow", "features", "find_feature", "select"]

OPSETS = (23, 24, 25)

_FEATURES = (*PLAIN_FEATURES, *SESSION_FEATURES, *MASK_FEATURES, *PAST_FEATURES, *CONTRIB_FEATURES, *FORM_FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRow:
    """A feature at one opset and element type."""

    feature: Feature
    opset: int
    dtype: Dtype


def features() -> tuple[Feature, ...]:
    """Every feature, in the order of the report tables."""
    return _FEATURES


def find_feature(slug: str) -> Feature:
    """Find a feature by its slug.

    Raises:
        PlanError: If there is none; the message suggests the nearest.

    Example:
        >>> find_feature("causal-past-one-query").title
        'causal, one query and several new keys'
    """
    for feature in _FEATURES:
        if feature.slug == slug:
            return feature
    near = difflib.get_close_matches(slug, [feature.slug for feature in _FEATURES], n=1, cutoff=0.6)
    hint = f"Did you mean '{near[0]}'?" if near else "A run without --only prints every feature."
    raise PlanError(f"There is no feature '{slug}'.", hint=hint)


def select(
    *,
    only: Sequence[str] = (),
    operators: Sequence[str] = (),
    opsets: Sequence[int] = (),
    dtypes: Sequence[str] = (),
) -> tuple[FeatureRow, ...]:
    """Select rows, in the order of the table; an empty argument selects all.

    Requested element types replace the default ones of each feature.

    Args:
        only: Slugs or groups of features.
        operators: Such as "Attention"; see `Operator`.
        opsets: 23, 24 and 25 for the ONNX operator, 18 for com.microsoft operators and the decomposed form.
        dtypes: Element types.

    Raises:
        PlanError: If a name is unknown, or nothing matches.
    """
    groups = {feature.group for feature in _FEATURES}
    for name in only:
        if name not in groups:
            find_feature(name)
    _require_known("operator", operators, list(Operator))
    _require_known("dtype", dtypes, list(Dtype))
    rows = tuple(
        FeatureRow(feature=feature, opset=opset, dtype=dtype)
        for feature in _FEATURES
        if (not only or feature.slug in only or feature.group in only)
        and (not operators or feature.operator in operators)
        for opset in _opsets_of(feature)
        if not opsets or opset in opsets
        for dtype in (feature.dtypes if not dtypes else [Dtype(name) for name in dtypes])
    )
    if not rows:
        raise PlanError("No feature matches this selection.", hint="Leave out --opset or --operator.")
    return rows


def _opsets_of(feature: Feature) -> tuple[int, ...]:
    if feature.operator not in (Operator.ATTENTION, Operator.BODY):
        return (feature.first_opset,)
    return tuple(opset for opset in OPSETS if opset >= feature.first_opset)


def _require_known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
            raise PlanError(f"There is no {kind} '{name}'.", hint=hint)
