"""Models exported at one size are correct at others; values of each attention equal those in torch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.model import SPEC_KEY, OnnxModel, load_model
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.torch_export.modules import FOUNDING_USES, MultiHeadAttention, founding_use
from tests.torch_export.exported import LIMIT, Comparison, max_abs_error, run
from tests.torch_export.user_modules import (
    Attend,
    CachedStep,
    Decoder,
    Encoder,
    ManyOutputs,
    PaddedSelfAttention,
    attentions_of,
)

_SIZES = [(1, 1, 1), (1, 1, 7), (2, 5, 1), (3, 2, 2), (1, 33, 17)]
_SIZES += [(1 + i % 4, 2 + (7 * i) % 23, 2 + (5 * i) % 19) for i in range(15)]

Case = tuple[nn.Module, OnnxModel, Callable[[int, int, int], tuple[Tensor, ...]]]


def _padding(batch_size: int, length: int) -> Tensor:
    hidden = torch.zeros(batch_size, length, dtype=torch.bool)
    hidden[-1, (length + 1) // 2 :] = True
    return hidden


def _case(name: str, opset: int) -> Case:
    torch.manual_seed(1)
    if name == "user-encoder":
        module: nn.Module = Encoder().eval()
        sample: tuple[Tensor, ...] = (torch.randn(2, 6, 16), _padding(2, 6))
        return (
            module,
            export_module(module, sample, opset=opset),
            lambda b, q, _: (torch.randn(b, q, 16), _padding(b, q)),
        )
    module, sample = founding_use(name)
    model = export_module(module, sample, opset=opset)
    if name == "encoder-decoder":
        return module, model, lambda b, q, k: (torch.randn(b, q, 512), torch.randn(b, k, 512))
    return module, model, lambda b, q, _: (torch.randn(b, q, 512),)


# By default both opsets, both our modules and one user module; the others with the slow tests.
_QUICK = {("decoder-self", 23), ("encoder-decoder", 18), ("user-encoder", 23)}
_CASES = [
    pytest.param((name, opset), id=f"{name}-{opset}", marks=() if (name, opset) in _QUICK else pytest.mark.slow)
    for name in (*FOUNDING_USES, "user-encoder")
    for opset in (18, 23)
]


@pytest.fixture(scope="module", params=_CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return _case(*request.param)


@pytest.mark.slow
def test_right_at_twenty_other_sizes(case: Case) -> None:
    """A model exported at one size agrees with float64 torch at twenty others, 1 among them."""
    module, model, draw = case
    comparison = Comparison(model, module)
    errors = {size: comparison.max_abs_error(draw(*size)) for size in _SIZES}
    assert len(errors) == 20
    assert max(errors.values()) < LIMIT, errors


def test_taps_are_what_torch_computed(case: Case) -> None:
    """Every query, key, value and output read from the graph equals that of torch's own function."""
    module, model, draw = case
    inputs = draw(2, 5, 9)
    tapped = run(model.tapped(), inputs)
    fed = dict(zip(model.input_names, (tensor.numpy() for tensor in inputs), strict=True))
    expected = attentions_of(module, *inputs)
    assert len(expected) == len(model.sites) > 0
    for site, call in zip(model.sites, expected, strict=True):
        for field, name in {**site.inputs, "output": site.output}.items():
            if field in call:
                actual = {**fed, **tapped}[name]
                assert actual.shape == tuple(call[field].shape), (site.name, field)
                assert np.abs(actual - call[field].numpy()).max() < LIMIT, (site.name, field)


def test_tapped_and_shipped_graphs_have_the_same_nodes(case: Case) -> None:
    """Reading values adds outputs and changes no node; the exported graph has only the module's outputs."""
    _, model, _ = case
    tapped = model.tapped()
    assert model.output_names == ("output",)
    assert [node.op_type for node in model.ir.graph] == [node.op_type for node in tapped.ir.graph]


def test_one_attention_node_each_from_opset_23(case: Case) -> None:
    """From opset 23 on every attention is one node, below it none; the file has the requested opset."""
    _, model, _ = case
    expected = len(model.sites) if model.opset >= 23 else 0
    assert model.node_counts().get("Attention", 0) == expected
    assert model.ir.metadata_props["sdpa_onnx.opset"] == str(model.opset)
    onnx.checker.check_model(onnx.load_from_string(model.to_bytes()))


def test_nothing_of_this_machine_in_the_file(case: Case) -> None:
    """No path, stack trace or torch metadata is left in the file."""
    data = case[1].to_bytes()
    here, python = str(Path.cwd()).encode(), sys.prefix.encode()
    for trace in (b"stack_trace", b"pkg.torch", b'File "', b"site-packages", b".py", here, python):
        assert trace not in data, trace


def test_metadata_says_what_exported_it(case: Case) -> None:
    """The metadata contains version, exporter and sites, and a loaded file has the same sites."""
    _, model, _ = case
    properties = model.ir.metadata_props
    assert properties["sdpa_onnx.exporter"] == f"torch {torch.__version__.split('+')[0]}"
    assert "sdpa_onnx.version" in properties
    assert (SPEC_KEY in properties) == (len(model.sites) == 1)
    assert load_model(onnx.load_from_string(model.to_bytes())).sites == model.sites


def test_the_comparison_can_fail() -> None:
    """The limit of these tests distinguishes causal attention from plain attention."""
    module, sample = founding_use("decoder-self")
    other, _ = founding_use("encoder-self")
    model = export_module(module, sample)
    assert max_abs_error(model, other, (torch.randn(1, 9, 512),)) > 100 * LIMIT


def test_dims_have_readable_names() -> None:
    """Batch and lengths have readable names, shared if they must be equal; head counts and widths are static."""
    length = (3, 3, 3, 7, 7)
    model = export_module(CachedStep(), tuple(torch.randn(2, 4, size, 8) for size in length))
    shapes = {value.name: [str(dim) for dim in value.shape or ()] for value in model.ir.graph.inputs}
    assert shapes == {
        "q": ["batch_size", "4", "q_seq_len", "8"],
        "k": ["batch_size", "4", "k_seq_len", "8"],
        "v": ["batch_size", "4", "k_seq_len", "8"],
        "past_k": ["batch_size", "4", "past_k_seq_len", "8"],
        "past_v": ["batch_size", "4", "past_k_seq_len", "8"],
    }
    present = [str(dim) for dim in model.ir.graph.outputs[1].shape or ()]
    assert present[0] == "batch_size"
    assert "past_k_seq_len" in present[2]
    assert "k_seq_len" in present[2]
    names = {str(dim) for node in model.ir.graph for value in node.outputs for dim in value.shape or ()}
    assert not [name for name in names if name.startswith("s") and name[1:].isdigit()]


def test_cache_that_starts_empty() -> None:
    """A step exported with a past also runs without one; its growing cache is read by output name."""
    module = CachedStep()
    model = export_module(module, tuple(torch.randn(2, 4, size, 8) for size in (3, 3, 3, 7, 7)))
    for length in ((1, 1, 1, 9, 9), (4, 4, 4, 0, 0), (2, 2, 2, 1, 1)):
        assert max_abs_error(model, module, tuple(torch.randn(3, 4, size, 8) for size in length)) < LIMIT
    assert model.sites[0].inputs["key"] == "output_1"
    assert model.sites[0].output == "output_0"


def test_sample_of_size_one_stays_dynamic() -> None:
    """A sample with one query, batch 1 and an empty past still exports a model for every size."""
    module = CachedStep()
    model = export_module(module, tuple(torch.randn(1, 4, size, 8) for size in (1, 1, 1, 0, 0)))
    assert max_abs_error(model, module, tuple(torch.randn(3, 4, size, 8) for size in (4, 4, 4, 6, 6))) < LIMIT


def test_one_tensor_given_twice_stays_two_inputs() -> None:
    """Cross-attention exported with (x, x, x) keeps separate inputs for keys and values."""
    module = Attend()
    x = torch.randn(2, 4, 5, 8)
    model = export_module(module, (x, x, x))
    other = (torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8))
    assert max_abs_error(model, module, other) < LIMIT


@pytest.mark.slow
def test_multihead_attention_of_torch_with_two_batches() -> None:
    """torch's own module exports with separate lengths of queries and keys and a common batch name."""
    module = nn.MultiheadAttention(16, 4, batch_first=True)
    sample = {"query": torch.randn(2, 5, 16), "key": torch.randn(2, 7, 16), "value": torch.randn(2, 7, 16)}
    model = export_module(module, {**sample, "need_weights": False})
    assert [next(str(dim) for dim in value.shape or ()) for value in model.ir.graph.inputs] == ["batch_size"] * 3
    assert model.node_counts()["Attention"] == 1
    inputs = (torch.randn(3, 4, 16), torch.randn(3, 9, 16), torch.randn(3, 9, 16))
    with torch.no_grad():
        expected = module.eval()(*inputs)[0]
    assert np.abs(run(model, inputs)["output"] - expected.numpy()).max() < LIMIT


@pytest.mark.slow
def test_padding_mask_is_expanded_for_onnxruntime() -> None:
    """A padding mask, (B, 1, 1, T) in torch, is expanded to a row per query for the Attention node."""
    module = PaddedSelfAttention()
    model = export_module(module, (torch.randn(2, 6, 16), _padding(2, 6)))
    assert max_abs_error(model, module, (torch.randn(3, 4, 16), _padding(3, 4))) < LIMIT
    assert model.sites[0].spec.mask is MaskKind.FLOAT
    tapped = run(model.tapped(), (torch.randn(3, 4, 16), _padding(3, 4)))
    assert tapped[model.sites[0].inputs["attn_mask"]].shape == (3, 4, 4, 4)


@pytest.mark.slow
def test_causal_mask_of_torchs_multihead_attention() -> None:
    """A 2-D mask that torch's module converts to float in place is read under its final name."""
    module = nn.MultiheadAttention(16, 4, batch_first=True)
    later = torch.ones(5, 5).triu(1).bool()
    x = torch.randn(2, 5, 16)
    sample = {"query": x, "key": x, "value": x, "need_weights": False, "attn_mask": later}
    model = export_module(module, sample, opset=18)
    assert model.input_names == ("query", "key", "value", "attn_mask")
    y = torch.randn(3, 7, 16)
    inputs = (y, y, y, torch.ones(7, 7).triu(1).bool())
    with torch.no_grad():
        expected = module.eval()(y, y, y, attn_mask=inputs[3], need_weights=False)[0]
    tapped = run(model.tapped(), inputs)
    assert np.abs(tapped["output"] - expected.numpy()).max() < LIMIT
    assert tapped[model.sites[0].inputs["attn_mask"]].shape[-2:] == (7, 7)


def test_input_that_is_named_like_an_output() -> None:
    """An input keeps the name of its parameter; an output with the same name is renamed."""

    class Clash(nn.Module):
        def forward(self, output: Tensor) -> Tensor:
            return output * 2

    model = export_module(Clash(), (torch.randn(2, 3, 4),))
    assert (model.input_names, model.output_names) == (("output",), ("output_value",))


@pytest.mark.slow
def test_decoder_with_the_flag_exports() -> None:
    """torch's decoder exports with tgt_is_causal set; self- and cross-attention are named by module path."""
    module = Decoder(tgt_is_causal=True)
    model = export_module(module, (torch.randn(2, 5, 16), torch.randn(2, 7, 16)))
    assert [site.name for site in model.sites] == ["decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    assert [site.spec.is_causal for site in model.sites] == [True, False]
    assert max_abs_error(model, module, (torch.randn(3, 4, 16), torch.randn(3, 9, 16))) < LIMIT


def test_outputs_that_are_nested_or_none() -> None:
    """None is left out, nested outputs are numbered, and an optional input may be present or absent."""
    x = torch.randn(2, 3, 4)
    without = export_module(ManyOutputs(), (x,))
    assert without.input_names == ("x",)
    assert without.output_names == ("output_0", "output_1", "output_2")
    given = export_module(ManyOutputs(), {"x": x, "gain": torch.randn(2, 3, 4)})
    assert given.input_names == ("x", "gain")
    assert max_abs_error(given, ManyOutputs(), (x, torch.randn(2, 3, 4))) < LIMIT


def test_width_of_a_plain_matrix_stays_fixed() -> None:
    """The last axis of a 2-D float input is a guess: it becomes static if the code specialises it."""
    model = export_module(nn.Linear(4, 3), (torch.randn(2, 4),))
    assert [str(dim) for dim in model.ir.graph.inputs[0].shape or ()] == ["batch_size", "4"]


def test_dynamic_axes_override_by_name() -> None:
    """An axis missing from dynamic_axes is static at the sample's size; other inputs keep their defaults."""
    model = export_module(
        Attend(), tuple(torch.randn(2, 4, size, 8) for size in (3, 5, 5)), dynamic_axes={"q": (0,), "k": (0, -2)}
    )
    shapes = {value.name: [str(dim) for dim in value.shape or ()] for value in model.ir.graph.inputs}
    assert shapes["q"] == ["batch_size", "4", "3", "8"]
    assert shapes["k"] == [*shapes["v"][:2], "k_seq_len", "8"]


def test_training_flags_and_fast_path_stay() -> None:
    """Exporting leaves every training flag and torch's fast path unchanged."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    module[1].eval()
    before = torch.backends.mha.get_fastpath_enabled()
    export_module(module, (torch.randn(2, 6, 4),))
    assert [part.training for part in (module, *module)] == [True, True, False]
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_training_later_does_not_change_the_model() -> None:
    """The model has its own copy of the weights."""
    module = MultiHeadAttention(hidden_size=16, q_num_heads=4, kv_num_heads=2)
    model = export_module(module, (torch.randn(2, 3, 16),))
    before = model.content_hash()
    with torch.no_grad():
        module.query_projection.weight.zero_()
    assert model.content_hash() == before


def test_export_is_silent(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    """torch's warnings and log lines are suppressed, also if the export fails."""
    export_module(Attend(), tuple(torch.randn(2, 4, size, 8) for size in (3, 5, 5)))
    with pytest.raises(ExportError):
        export_module(Decoder(tgt_is_causal=None), (torch.randn(2, 5, 16), torch.randn(2, 7, 16)))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


_HASH = """
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.torch_export.modules import founding_use
module, sample = founding_use("encoder-decoder")
print(export_module(module, sample).content_hash(), export_module(module, sample).content_hash())
"""


@pytest.mark.slow
def test_two_exports_are_byte_equal() -> None:
    """Two exports in one process give the same bytes."""
    module, sample = founding_use("encoder-decoder")
    assert export_module(module, sample).to_bytes() == export_module(module, sample).to_bytes()


@pytest.mark.slow
def test_exports_in_two_processes_are_byte_equal() -> None:
    """An export in another process, with another hash seed, gives the same bytes."""
    module, sample = founding_use("encoder-decoder")
    here = export_module(module, sample).content_hash()
    elsewhere = subprocess.run(
        [sys.executable, "-c", _HASH], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout.split() == [here, here]


def test_importing_the_room_loads_no_torch() -> None:
    """Importing the package itself is fast."""
    code = "import sys, sdpa_onnx.torch_export; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_key_and_value_share_the_name_of_their_length() -> None:
    """Key and value as separate inputs get one axis name: attention requires equal lengths."""

    class Bare(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    model = export_module(Bare(), tuple(torch.randn(2, 4, length, 8) for length in (5, 6, 6)))
    lengths = [str(model.input_value(name).shape[2].value) for name in ("q", "k", "v")]
    assert lengths == ["q_seq_len", "k_seq_len", "k_seq_len"]
