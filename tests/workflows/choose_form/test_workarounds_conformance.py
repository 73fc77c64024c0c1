"""For every finding of `conformance` on ort-cpu, the written form avoids it or is refused."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, FormSessions
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, probe_form
from sdpa_onnx.workflows.conformance.drawing import DrawnCase, draw_cases
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
from sdpa_onnx.workflows.conformance.table import features, find_feature
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all probes."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


# Features of the ONNX operator whose rows can be written in a form: without attributes that change
# the arithmetic, and without poison, which the probes have themselves.
FEATURES = [
    feature.slug
    for feature in features()
    if feature.operator is Operator.ATTENTION and not feature.attributes and not feature.poison
]


# No workaround is known for these: scores after a mask, where a row of the lowest number is treated as masked.
REFUSED = frozenset(
    slug for slug in FEATURES if slug.startswith("qk-mask") or slug in ("qk-softcap", "qk-softcap-off", "qk-weights")
)


def _problem(feature: Feature, spec: AttentionSpec) -> FormProblem:
    """The problem of a feature; with lengths and a mask, the spec has the lengths and `beside_lengths` the mask."""
    if feature.lengths and spec.mask is not MaskKind.LENGTHS:
        lengths = replace(spec, mask=MaskKind.LENGTHS)
        return FormProblem(spec=lengths, mask_shapes=(feature.mask_shape,), beside_lengths=spec.mask)
    return FormProblem(spec=spec, mask_shapes=(feature.mask_shape,), scores_mode=feature.qk_mode)


def _cases(feature: Feature, number: int) -> list[DrawnCase]:
    """The feature's cases of one of its specs."""
    return [drawn for drawn in draw_cases(feature, Dtype.FLOAT32, seed=7) if drawn.case.spec == feature.specs[number]]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("slug", FEATURES)
def test_a_feature_is_right_or_refused(slug: str, opset: int, ort_cpu: GuardedRuntime) -> None:
    """The form is right on the feature's own cases, whose inputs differ from the probes."""
    feature = find_feature(slug)
    for number, spec in enumerate(feature.specs):
        problem = _problem(feature, spec)
        found = probe_form(ort_cpu, problem, Form.ATTENTION, opset=opset)
        if isinstance(found, RefusedForm):
            assert slug in REFUSED
            continue
        with FormSessions(
            runtime=ort_cpu, problem=problem, form=Form.ATTENTION, opset=opset, options=found.options
        ) as sessions:
            for drawn in _cases(feature, number):
                outcome = sessions.run_probe(drawn.inputs, mask_shape=feature.mask_shape)
                case = drawn.case
                is_empty = not (case.batch_size and case.q_seq_len and case.kv_seq_len)
                has_warning = is_empty and outcome.kind is Conformity.REFUSED and bool(found.record.warnings)
                is_right = outcome.kind is Conformity.RIGHT
                assert has_warning or is_right, f"{case.case_id}, {drawn.source}: {outcome.message}"
