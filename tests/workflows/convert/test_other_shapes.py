"""Where onnx.reference and the runtime disagree about a shape, the reading is judged by the runtime's values."""

from dataclasses import replace

import numpy as np

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.run_context import RunContext
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.paired_runs import PairedModels, RunEffort
from sdpa_onnx.workflows.convert.reading_check import judge_reading, judge_source
from tests.workflows.convert.test_old_opsets import old_file


def test_a_reference_of_another_shape_accuses_nothing() -> None:
    """An empty array of the reference is no proof of a misreading; a wrong one of the right shape is."""
    done = convert_model(load_model(old_file("clip")), Form.ATTENTION)
    pairs = PairedModels(
        source=done.source, result=done.model, runtime=get_runtime("ort-cpu"), effort=RunEffort(count=1, spreads=(1.0,))
    )
    run = next(iter(pairs.runs()))
    context = RunContext(
        model=done.source,
        runtime=run.at_source,
        ran=run.source_ran,
        check=run.step.check,
        step=run.step.word,
        target="clip",
    )
    own = list(judge_source(context, run))
    output = done.source.sites[0].output
    for array, outcome in ((np.zeros((1, 3, 0, 4)), Outcome.OK), (run.wide.values[output] + 1, Outcome.DISAGREES)):
        wide = replace(run.wide, values={**run.wide.values, output: array})
        (reading,) = judge_reading(context, replace(run, wide=wide), own)
        assert reading is not None
        assert reading.outcome is outcome
