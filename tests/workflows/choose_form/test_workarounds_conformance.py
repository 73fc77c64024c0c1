"""Every finding of `conformance` on ort-cpu: what is written for it avoids the finding, or it is refused."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, FormSessions
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, workable
from sdpa_onnx.workflows.conformance.drawing import DrawnCase, draw_cases
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
from sdpa_onnx.workflows.conformance.table import features, find_feature
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all questions."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


# Features of the standard operator whose rows can be written in a form: no attributes of other
# arithmetic, no poison beyond the probes' own.
FEATURES = [
    feature.slug
    for feature in features()
    if feature.operator is Operator.ATTENTION and not feature.attributes and not feature.poison
]


# Of these no way around is known: the scores after a mask, where a row of the lowest number is lost.
REFUSED = frozenset(
    slug for slug in FEATURES if slug.startswith("qk-mask") or slug in ("qk-softcap", "qk-softcap-off", "qk-weights")
)


def _problem(feature: Feature, spec: AttentionSpec) -> FormProblem:
    """What a graph of this feature is; lengths beside a mask are the spec's, the mask stands beside them."""
    if feature.lengths and spec.mask is not MaskKind.LENGTHS:
        lengths = replace(spec, mask=MaskKind.LENGTHS)
        return FormProblem(spec=lengths, mask_shapes=(feature.mask_shape,), beside_lengths=spec.mask)
    return FormProblem(spec=spec, mask_shapes=(feature.mask_shape,), scores_mode=feature.qk_mode)


def _asked(feature: Feature, number: int) -> list[DrawnCase]:
    """The feature's own cases of one of its specs."""
    return [drawn for drawn in draw_cases(feature, Dtype.FLOAT32, seed=7) if drawn.case.spec == feature.specs[number]]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("slug", FEATURES)
def test_a_feature_is_right_or_refused(slug: str, opset: int, ort_cpu: GuardedRuntime) -> None:
    """Other inputs than the probes': those of the feature's own cases."""
    feature = find_feature(slug)
    for number, spec in enumerate(feature.specs):
        problem = _problem(feature, spec)
        found = workable(ort_cpu, problem, Form.ATTENTION, opset=opset)
        if isinstance(found, RefusedForm):
            assert slug in REFUSED
            continue
        with FormSessions(
            runtime=ort_cpu, problem=problem, form=Form.ATTENTION, opset=opset, options=found.options
        ) as sessions:
            for drawn in _asked(feature, number):
                answer = sessions.ask(drawn.inputs, mask_shape=feature.mask_shape)
                case = drawn.case
                is_empty = not (case.batch_size and case.q_seq_len and case.kv_seq_len)
                is_told = is_empty and answer.kind is Conformity.REFUSED and bool(found.record.warnings)
                assert is_told or answer.kind is Conformity.RIGHT, f"{case.case_id}, {drawn.source}: {answer.message}"
