"""Types that a user's editor sees; checked by mypy in test_typing.py, never run."""

from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import sdpa_onnx as so
from sdpa_onnx.core.records.records import (
    AttentionRecord,
    ConformanceRecord,
    GateRecord,
    Record,
    SaturationRecord,
    TimingRecord,
)
from sdpa_onnx.graph.model import OnnxModel

# pytest imports every file for its doctests.
if TYPE_CHECKING:
    spec = so.AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
    model = so.export(spec, form="blocked", runtime="ort-cpu")
    assert_type(model, OnnxModel)
    assert_type(so.load("m.onnx"), OnnxModel)
    assert_type(so.convert(model, "auto", seconds=3.0), OnnxModel)
    assert_type(so.find_attention(model), so.RecordList[AttentionRecord])
    assert_type(so.inspect("m.onnx"), so.RecordList[AttentionRecord])
    assert_type(so.verify(model, runtimes=["ort-cpu"]), so.RecordList[Record])
    times = so.bench({"a": model, "b": "b.onnx"}, runtimes=["ort-cpu", "torch"], threads=[1, 2])
    assert_type(times, so.RecordList[TimingRecord])
    assert_type(times[0], TimingRecord)
    assert_type(times[:2], so.RecordList[TimingRecord])
    assert_type(times[0].ratio, float | None)
    assert_type(so.compare("a.onnx", model, skip=["time"]), so.RecordList[GateRecord])
    assert_type(so.saturation(head_dims=[8]), so.RecordList[SaturationRecord])
    run = so.run("smoke", skip=["time"])
    assert_type(run, so.RecordList[Record])
    assert_type(run.folder, Path | None)
    assert_type(so.conformance(), so.RecordList[ConformanceRecord])
    as_list: list[TimingRecord] = times
    same: list[Record] = so.verify(model)

    so.export(spec, form="fused")  # wrong: no such form
    so.compare("a.onnx", "b.onnx", skip=["speed"])  # wrong: no such gate
    so.bench(model, cache="hot")  # wrong: no such state
    so.to_table(times, library="excel")  # wrong: no such library
    so.run(skip=["export"])  # wrong: cannot be skipped
