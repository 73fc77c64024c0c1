"""Graphs of bare attention that the oracle has judged, for the benchmarks beside: nothing wrong is timed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport, Session, get_runtime
from sdpa_onnx.workflows.export.export_target import export_target

RUNTIME = "ort-cpu"
THREADS = 1
SEED = 0


@dataclass(frozen=True)
class Judged:
    """A loaded graph that is right: its case, what ran, how large its error is, and a call on bound buffers."""

    case: AttentionCase
    model: OnnxModel
    ran: RanReport
    agreement: Agreement
    call: Callable[[], None]


@cache
def exported(head_dim: int, form: str, opset: int) -> OnnxModel:
    """Eight heads, float32; one graph serves every length."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=head_dim)
    return export_target(spec, opset=opset, form=form, dtype=None)


@contextmanager
def judged(model: OnnxModel, length: int) -> Iterator[Judged]:
    """Load a graph, judge one run of the session that is timed afterwards, and bind its inputs and outputs."""
    case = AttentionCase(spec=model.sites[0].spec, q_seq_len=length)
    inputs = draw_inputs(case, seed=SEED)
    options = LoadOptions(threads=THREADS, purpose=Purpose.TIMING)
    with get_runtime(RUNTIME).load(model, options) as session:
        agreement = _agreement(case, inputs, session)
        assert agreement.verdict is Verdict.OK, agreement.diagnosis
        yield Judged(
            case=case, model=model, ran=session.ran(), agreement=agreement, call=session.bind(inputs.onnx_feeds())
        )


def _agreement(case: AttentionCase, inputs: AttentionInputs, session: Session) -> Agreement:
    output = session.run(inputs.onnx_feeds())["Y"]
    expectation = expect(case.spec, inputs, precision=find_precision(session.ran().precision), seed=SEED)
    return judge(expectation, output)
