"""Records: every kind survives a line of JSON; what is no record is refused with file and line."""

import json
from dataclasses import replace

import msgspec
import pytest

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind, ScaleRule
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.core.records.gate_records import Gate, GateVerdict
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    AttentionRecord,
    BakedAxis,
    BakedSetting,
    ConformanceRecord,
    Conformity,
    ExportRecord,
    FormRecord,
    GateRecord,
    LocatedRecord,
    Outcome,
    PlantedRecord,
    RatioVerdict,
    Record,
    RuntimeRecord,
    Sizes,
    Subject,
    TimingRecord,
    Verdict,
    decode_record,
    encode_record,
    to_builtins,
)
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.records.timing_records import NodeTime
from sdpa_onnx.errors import RecordFormatError

SIZES = Sizes(batch_size=2, q_seq_len=3, kv_seq_len=4, head_dim=5, q_num_heads=6)
SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, mask=MaskKind.BOOL, scale=ScaleRule.INVERSE)

FULL: dict[str, Record] = {
    "planted": PlantedRecord(
        cell="ab12",
        job="j1",
        parts=2,
        case="b1",
        target="m.onnx",
        form="attention",
        opset=23,
        runtime="ort-cpu",
        outcome=Outcome.FAILED,
        reason="it would not be noticed",
        warnings=("one",),
        site="sdpa",
        dtype="float32",
        fault="scale-missing",
        says="the scale is left out",
        caught_by="spread 4",
    ),
    "located": LocatedRecord(
        cell="ab12",
        job="j1",
        parts=2,
        case="b1",
        target="m.onnx",
        form="attention",
        opset=23,
        runtime="ort-cpu",
        outcome=Outcome.FAILED,
        reason="it would not be noticed",
        warnings=("one",),
        subject=Subject.OUTPUT,
        site="Y",
        sizes=SIZES,
        inputs="spread 1",
        node="n",
        op_type="MatMul",
        value="v",
        verdict=Verdict.SUSPICIOUS,
        max_abs_error=1.5,
        allowed=0.5,
        group=("n", "m"),
        judged=4,
        not_judged=1,
        diagnosis="It is n.",
    ),
    "conformance": ConformanceRecord(
        cell="ab12",
        job="j1",
        parts=2,
        case="b1",
        target="Attention",
        form="attention",
        opset=23,
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        reason="it differs",
        warnings=("one",),
        feature="causal-past-one-query",
        group="causal",
        title="causal with a past",
        operator="Attention",
        dtype="float32",
        verdict=Conformity.WRONG,
        path="expanded",
        path_nodes=59,
        observed="unmasked",
        reading="onnx before PR 8068",
        diagnosis="2 of 3",
        max_abs_error=1.5,
        max_bound_ratio=3.5,
        cases=4,
        wrong_cases=2,
        repeat="sdpa-onnx conformance",
    ),
    "agreement": AgreementRecord(
        cell="ab12",
        job="j1",
        parts=3,
        case="b1",
        target="self",
        form="attention",
        opset=23,
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        reason="it differs",
        warnings=("one", "zwei: \u00e9 \u2264"),
        spec=SPEC,
        past_seq_len=3,
        axes={"x_seq_len": 5},
        subject=Subject.READING,
        site="node 1",
        sizes=SIZES,
        dtype="float32",
        precision="float32",
        verdict=Verdict.WRONG,
        max_abs_error=1e-7,
        max_bound_ratio=3.5,
        kappa=2.5,
        max_z=7.0,
        expanded={"Attention": 59},
        fused={"FusedMatMul": 1},
        providers={"CPUExecutionProvider": 60},
        not_finite=2,
        max_relative_error=0.25,
        max_ulp_error=12.0,
        cosine=0.5,
        diagnosis="2 of 3",
        inputs="ladder",
        spread=4.0,
        sequence=({"q_seq_len": 3}, {"q_seq_len": 1}),
        seed=7,
        judged_rows=1,
        total_rows=9,
        scale_error_proven=0.001,
        scale_note="scale 0.18 = 1.02/sqrt(d_k), not the usual 1/sqrt(d_k)",
        ran={"MatMul": 2},
    ),
    "timing": TimingRecord(
        expanded={"Attention": 59},
        fused={"FusedMatMul": 1},
        providers={"CPUExecutionProvider": 60},
        group="g",
        sizes=SIZES,
        spec=SPEC,
        past_seq_len=3,
        dtype="float16",
        arm="ort-cpu",
        baseline="torch",
        median_seconds=0.1,
        median_low=0.09,
        median_high=0.11,
        wall_min_seconds=0.08,
        ratio=1.5,
        ratio_low=1.4,
        ratio_high=1.6,
        clock="cpu",
        threads=2,
        disturbed=0.125,
        calls=100,
        blocks=40,
        steady=False,
        useful_flops=2**60,
        executed_flops=2**61,
        exps=10,
        bytes_moved=11,
        roof_share=0.3,
        verdict=RatioVerdict.SLOWER,
        launches=5,
        confidence=0.99,
        log_ratio_se=0.01,
        degrees=4.5,
        between_sd=0.004,
        detectable=0.03,
        launches_needed=7,
        ratio_wall=1.51,
        ratio_cpu=1.49,
        create_seconds=0.2,
        first_seconds=0.12,
        new_length_seconds=0.13,
        idle_seconds=0.14,
        compile_seconds=7.5,
        p50_seconds=0.1,
        p90_seconds=0.12,
        p99_seconds=0.2,
        calls_per_second=9.5,
        nodes=(NodeTime(node="a", operator="Attention", seconds=0.06),),
        kernel_seconds=0.07,
        host_seconds=0.03,
        peak_memory_bytes=2**33,
        cache="cold",
        bound_by="memory",
        switches=3,
        faults=4,
        runtime_version="1.2.3",
        python="old",
        options={"provider.use_tf32": "0"},
        model_nodes={"MatMul": 2},
        model_bytes=2**34,
        samples="samples/ab.npz",
        ran={"Attention": 1},
    ),
    "export": ExportRecord(
        dynamic_axes=("batch", "q"),
        limits=(AxisLimit(size="q", smallest=2, largest=300, step=2, source="m.py:5", tested=(2, 300)),),
        baked=(BakedAxis(axis="q", node="Reshape_1", evidence="shape [8]"),),
        settings=(BakedSetting(setting="scale", site="sdpa", fixed="0.2", own="0.1", evidence="the scale is fixed"),),
        sizes_tried=20,
        longest=1061,
        untested=(4096,),
        nodes={"Attention": 1},
        seconds=3.5,
        model="ff00",
    ),
    "attention": AttentionRecord(
        node="n",
        dialect="onnx",
        spec=SPEC,
        dynamic_axes=("batch",),
        limits=(AxisLimit(size="batch", step=4),),
        baked=(BakedAxis(axis="q", node="Reshape_1", evidence="shape [8]"),),
        static_axes=("the batch axis 0 of 'x' is fixed to 2 in the file",),
        scale_doubt="n: scale 0.0625 may have been fixed",
        sizes_tried=4,
        converted_to="blocked",
        mask_band=WindowBounds(left=3, right=0),
        quantised="scores quantized",
    ),
    "form": FormRecord(
        site="decoder",
        dtype="float32",
        arm="blocked/decomposed",
        sizes=Sizes(batch_size=1),
        past_seq_len=4,
        workarounds=("expand-mask",),
        evidence="Without expand-mask it does not run.",
        verdict=Conformity.RIGHT,
        probes=31,
        threads=2,
        median_seconds=0.1,
        ratio=1.1,
        ratio_low=1.05,
        ratio_high=1.2,
        chosen=True,
    ),
    "gate": GateRecord(
        gate=Gate.TIME,
        word=GateVerdict.REGRESSION,
        arm="ort-cpu",
        spec=SPEC,
        past_seq_len=3,
        subject=Subject.OUTPUT,
        site="sdpa",
        inputs="spread 1",
        dtype="float32",
        sizes=SIZES,
        axes={"x_seq_len": 5},
        compared_at=("x_seq_len 5",),
        longest=5,
        untested=(64,),
        threads=2,
        base="ok",
        head="wrong",
        evidence="It is slower.",
        ratio=1.2,
        ratio_low=1.1,
        ratio_high=1.3,
        confidence=0.99,
        margin=0.05,
        p_value=0.001,
        base_seconds=0.1,
        head_seconds=0.12,
        base_bytes=10,
        head_bytes=11,
        amount=17.0,
    ),
    "runtime": RuntimeRecord(outcome=Outcome.SKIPPED, reason="no GPU", version="1.2", measures_time=False),
}


@pytest.mark.parametrize("kind", FULL)
def test_a_record_survives_its_line(kind: str) -> None:
    """Equal after a round trip, of the same type, on one line that names its kind."""
    line = encode_record(FULL[kind])
    assert b"\n" not in line
    assert json.loads(line)["kind"] == kind
    back = decode_record(line, where="x:1")
    assert back == FULL[kind]
    assert type(back) is type(FULL[kind])


@pytest.mark.parametrize("kind", ["agreement", "timing", "gate"])
def test_earlier_records_get_their_spec_from_the_case_id(kind: str) -> None:
    """Only where the field is missing: a spec of null is of a larger model, whatever it is called."""
    case = "b1_hq4_hkv2_q1_kv1_d8_f32_past5"
    old = decode_record(f'{{"kind":"{kind}","case":"{case}"}}'.encode(), where="old:1")
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, has_past=True)
    assert (old.spec, old.past_seq_len) == (spec, 5)  # type: ignore[union-attr]
    now = decode_record(f'{{"kind":"{kind}","case":"{case}","spec":null}}'.encode(), where="new:1")
    assert (now.spec, now.past_seq_len) == (None, None)  # type: ignore[union-attr]
    named = decode_record(f'{{"kind":"{kind}","case":"two.onnx_b1_q13"}}'.encode(), where="old:2")
    assert (named.spec, named.past_seq_len) == (None, None)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", FULL)
def test_a_full_record_leaves_no_field_at_its_default(kind: str) -> None:
    """So the round trip above would notice a field that is not written."""
    record, empty = FULL[kind], type(FULL[kind])()
    own = set(type(record).__annotations__)
    unchanged = {name for name in own if getattr(record, name) == getattr(empty, name)}
    assert unchanged == set()


@pytest.mark.parametrize("kind", FULL)
def test_an_empty_record_survives_its_line(kind: str) -> None:
    """The defaults too, among them None for "not known"."""
    empty = type(FULL[kind])()
    assert decode_record(encode_record(empty), where="x:1") == empty


def test_the_same_record_gives_the_same_bytes() -> None:
    """Keys are sorted, so files can be compared and hashed."""
    line = encode_record(FULL["timing"])
    assert line == encode_record(decode_record(line, where="x:1"))
    assert list(json.loads(line)) == sorted(json.loads(line))


def test_every_record_says_its_schema_and_outcome() -> None:
    """What DESIGN section 4 demands of each line."""
    for record in FULL.values():
        written = json.loads(encode_record(record))
        assert written.keys() >= {"schema", "kind", "cell", "case", "form", "opset", "runtime", "outcome", "warnings"}
        assert written["schema"] == 2


BROKEN = {
    "garbage": (b"garbage", "run/records.jsonl:7: JSON is malformed: invalid character (byte 0)."),
    "empty": (b"", "run/records.jsonl:7: Input data was truncated."),
    "cut short": (encode_record(FULL["runtime"])[:-5], "run/records.jsonl:7: Input data was truncated."),
    "an array": (b"[]", "run/records.jsonl:7: Expected `object`, got `array`."),
    "no kind": (b'{"schema":1}', "run/records.jsonl:7: Object missing required field `kind`."),
    "unknown kind": (b'{"kind":"rumour"}', "run/records.jsonl:7: Invalid value 'rumour' - at `$.kind`."),
    "wrong type": (
        b'{"kind":"timing","blocks":"many"}',
        "run/records.jsonl:7: Expected `int | null`, got `str` - at `$.blocks`.",
    ),
    "unknown outcome": (
        b'{"kind":"runtime","outcome":"splendid"}',
        "run/records.jsonl:7: Invalid enum value 'splendid' - at `$.outcome`.",
    ),
    "bad utf-8": (b'{"kind":"runtime","version":"\xff"}', "run/records.jsonl:7: Invalid UTF-8 encoded string."),
    "impossible spec": (
        b'{"kind":"attention","spec":{"q_num_heads":8,"kv_num_heads":0,"head_dim":4}}',
        "run/records.jsonl:7: kv_num_heads is 0; it must be at least 1. - at `$.spec`.",
    ),
    "unknown field": (
        b'{"kind":"runtime","colour":"red"}',
        "run/records.jsonl:7: Object contains unknown field `colour`.",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_line_that_is_no_record_is_refused(name: str) -> None:
    """File and line first, then what is wrong; the cause is kept."""
    line, text = BROKEN[name]
    with pytest.raises(RecordFormatError) as caught:
        decode_record(line, where="run/records.jsonl:7")
    assert str(caught.value) == text
    assert isinstance(caught.value.__cause__, (msgspec.MsgspecError, UnicodeDecodeError))


def test_plain_values_for_json_output() -> None:
    """`--json` prints dicts and lists with the kind inside."""
    plain = to_builtins(FULL["attention"])
    assert plain["kind"] == "attention"
    assert plain["spec"]["scale"] == "1/d_k"
    assert plain["outcome"] == "ok"
    assert json.loads(json.dumps(plain)) == json.loads(encode_record(FULL["attention"]))


def test_a_run_is_finished_when_it_ended_with_every_cell() -> None:
    """Neither an end without all cells nor all cells without an end is enough."""
    header = RunHeader(suite="quick", started="2024-01-01T00:00:00", command="sdpa-onnx run quick", planned_cells=3)
    assert not header.is_finished
    assert not replace(header, done_cells=3).is_finished
    assert not replace(header, finished="2024-01-01T00:03:00", done_cells=2).is_finished
    assert replace(header, finished="2024-01-01T00:03:00", done_cells=3).is_finished
