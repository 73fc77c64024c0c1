"""The torch baseline beyond the conformance suite: modules, files through their spec, kernels, threads."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Supported, Unsupported, get_runtime
from sdpa_onnx.runtimes.torch_baseline import TorchBaseline
from tests.runtimes.models import Problem, decomposed, draw, model, model_of

REFUSED = Unsupported("torch runs modules and one bare attention (inputs Q, K, V, output Y), no other file")


class TwoOptional(torch.nn.Module):
    """A module whose second argument an export may leave out."""

    def forward(
        self, x: torch.Tensor, shift: torch.Tensor | None = None, factor: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        y = x if shift is None else x + shift
        z = y if factor is None else y * factor
        return z, [x - 1]


def module_model(inputs: tuple[str, ...], outputs: tuple[str, ...] = ("Y", "W")) -> OnnxModel:
    """A graph with these names, as if exported from `TwoOptional` in this process."""
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in (*inputs, *outputs)}
    nodes = [helper.make_node("Neg", [inputs[0]], [name]) for name in outputs]
    proto = model_of(nodes, [values[n] for n in inputs], [values[n] for n in outputs], opset=18)
    return replace(load_model(proto), source=TwoOptional())


FEED = np.array([1.0, 2.0], dtype=np.float32)


def test_graph_inputs_reach_the_parameters_of_their_name() -> None:
    """An optional parameter that the export left out does not shift the later ones."""
    with TorchBaseline().load(module_model(("x", "factor")), LoadOptions()) as session:
        outputs = session.run({"x": FEED, "factor": 3 * FEED})
    assert list(outputs) == ["Y", "W"]
    assert np.array_equal(outputs["Y"], 3 * FEED * FEED)
    assert np.array_equal(outputs["W"], FEED - 1)


def test_other_names_are_taken_in_order() -> None:
    """Where the names tell nothing, the order of the graph's inputs is the order of forward."""
    with TorchBaseline().load(module_model(("input_0", "input_1")), LoadOptions()) as session:
        assert np.array_equal(session.run({"input_1": 10 * FEED, "input_0": FEED})["Y"], 11 * FEED)


def test_an_output_that_is_an_input_is_copied() -> None:
    """A module that returns its argument does not hand out the caller's memory."""
    with TorchBaseline().load(module_model(("x",)), LoadOptions()) as session:
        output = session.run({"x": FEED})["Y"]
    assert not np.shares_memory(output, FEED)


def test_a_module_with_other_outputs_is_an_error() -> None:
    """A tapped model has outputs that a module cannot give."""
    loaded = module_model(("x",), ("Y", "W", "tapped"))
    with TorchBaseline().load(loaded, LoadOptions()) as session, pytest.raises(SessionError) as caught:
        session.run({"x": FEED})
    assert str(caught.value) == (
        "torch gave 2 outputs; the model has 3: Y, W, tapped. "
        "A module cannot give the inner values that a tapped model outputs."
    )


def test_a_failing_module_is_one_sentence() -> None:
    """The first line of torch's text, the runtime, and the cause."""
    loaded = module_model(("x", "factor"))
    with TorchBaseline().load(loaded, LoadOptions()) as session, pytest.raises(SessionError) as caught:
        session.run({"x": FEED, "factor": np.ones(3, np.float32)})
    assert str(caught.value) == (
        "torch failed: The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0."
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_file_of_other_nodes_is_refused() -> None:
    """Without a spec there is nothing that torch could run."""
    assert TorchBaseline().supports(decomposed()) == REFUSED
    with pytest.raises(SessionError) as caught:
        TorchBaseline().load(decomposed(), LoadOptions())
    assert str(caught.value) == f"torch cannot load the model: {REFUSED.reason}."


def test_a_bare_attention_with_the_scores_as_output_is_refused() -> None:
    """The fourth output of Attention is none of torch's."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 2, "s", 8]) for n in "QKVY"]
    scores = helper.make_tensor_value_info("S", TensorProto.FLOAT, ["b", 2, "s", "s"])
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y", "", "", "S"])
    loaded = load_model(model_of([node], values[:3], [values[3], scores], opset=23))
    assert len(loaded.sites) == 1
    assert TorchBaseline().supports(loaded) == REFUSED


SPECS = {
    "past-causal": AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True),
    "past-mask": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT, has_past=True),
    "bsh": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, v_head_dim=4, layout=Layout.BSH),
    "lengths": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.LENGTHS),
    "softcap": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=5.0),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_spec_runs_as_its_graph_does(spec: AttentionSpec) -> None:
    """Inputs and outputs of every kind of bare attention find their places: torch agrees with ONNX Runtime."""
    case = AttentionCase(spec=spec, batch_size=2, q_seq_len=3, past_seq_len=2 if spec.has_past else 0)
    loaded = load_model(build_attention_model(spec, opset=24, dtype=Dtype.FLOAT32))
    feeds = draw_inputs(case).onnx_feeds()
    assert TorchBaseline().supports(loaded) == Supported()
    with (
        TorchBaseline().load(loaded, LoadOptions()) as ours,
        get_runtime("ort-cpu").load(loaded, LoadOptions()) as theirs,
    ):
        actual, expected = ours.run(feeds), theirs.run(feeds)
    assert list(actual) == list(expected) == list(loaded.output_names)
    for name, array in expected.items():
        assert np.abs(actual[name] - array).max() < 1e-5, name


def test_the_kernel_is_watched_not_assumed() -> None:
    """torch takes its flash kernel where the widths are equal and its composed one where they are not."""
    counts = {}
    for name, problem in {"equal": Problem(), "unequal": Problem(v_head_dim=4)}.items():
        with TorchBaseline().load(model(problem), LoadOptions()) as session:
            session.run(draw(problem))
            report = session.ran()
        assert report.providers == {"torch sdpa": 1}
        counts[name] = report.node_counts
    assert counts["equal"]["_scaled_dot_product_flash_attention_for_cpu"] == 1
    assert counts["unequal"]["bmm"] == 2


def test_the_written_formula_is_eager() -> None:
    """A softcap never reaches SDPA, and the report says so."""
    spec = SPECS["softcap"]
    loaded = load_model(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32))
    with TorchBaseline().load(loaded, LoadOptions()) as session:
        session.bind(draw_inputs(AttentionCase(spec=spec, q_seq_len=3)).onnx_feeds())
        report = session.ran()
    assert list(report.providers) == ["torch eager"]
    assert report.node_counts["tanh"] == 1


def test_nothing_is_known_before_a_run() -> None:
    """torch chooses in each call, so before the first there is nothing to report."""
    with TorchBaseline().load(model(Problem()), LoadOptions()) as session:
        report = session.ran()
    assert report.providers == {}
    assert report.warnings == ("torch chooses its kernels in each call, and nothing has run yet.",)


def test_reduced_float32_products_are_told() -> None:
    """A process-wide setting may take bits from float32; the report must not hide it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with TorchBaseline().load(model(Problem()), LoadOptions()) as session:
            session.run(draw(Problem()))
            warnings = session.ran().warnings
    finally:
        torch.set_float32_matmul_precision(before)
    assert warnings == ("torch.set_float32_matmul_precision is 'medium': float32 products may be computed in less.",)


def test_threads_are_set_before_a_run() -> None:
    """The thread count of the options is the one that torch has while it runs."""
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            with TorchBaseline().load(model(Problem()), LoadOptions(threads=threads)) as session:
                session.run(draw(Problem()))
                assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_values_that_are_fewer_than_keys_are_refused() -> None:
    """torch's kernel would read past the end of the values: the whole text of our refusal."""
    feeds = draw(Problem())
    feeds["V"] = feeds["V"][:, :, :3]
    with TorchBaseline().load(model(Problem()), LoadOptions()) as session, pytest.raises(SessionError) as caught:
        session.run(feeds)
    assert str(caught.value) == (
        "torch failed: 'Q' (2, 2, 5, 8), 'K' (2, 2, 5, 8) and 'V' (2, 2, 3, 8) do not fit. "
        "Batch sizes must be equal, and there must be as many values as keys."
    )


_WATCHED = """
import sys
import torch
from sdpa_onnx.runtimes.torch_ran import recorded_kernels
one = torch.ones(1, 1, 2, 4)
with torch.inference_mode():
    _, kernels = recorded_kernels(lambda: torch.nn.functional.scaled_dot_product_attention(one, one, one))
assert kernels["scaled_dot_product_attention"] == 1, kernels
assert "torch._dynamo" not in sys.modules, "was imported"
"""


@pytest.mark.slow
def test_watching_kernels_imports_no_compiler() -> None:
    """It would cost every process that times torch up to a second."""
    done = subprocess.run([sys.executable, "-c", _WATCHED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
