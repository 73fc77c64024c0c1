"""Files written by onnxruntime's optimiser: every attention of a BERT is found and read correctly."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from tests.graph.lift.taps import Tapped, run

pytestmark = pytest.mark.slow

_WIDTH, _HEADS, _LAYERS = 64, 4, 2
_FEEDS = {
    "ids": np.arange(14, dtype=np.int64).reshape(2, 7),
    "mask": np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], dtype=np.int64),
}


def _bert() -> Any:
    """Two layers in the patterns that the optimiser fuses."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.dense = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
            self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)

        def split(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.view(rows.size(0), rows.size(1), _HEADS, _WIDTH // _HEADS).permute(0, 2, 1, 3)

        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            query, key, value = (self.split(part(rows)) for part in (self.query, self.key, self.value))
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(_WIDTH // _HEADS) + mask
            context = torch.matmul(torch.softmax(scores, -1), value).permute(0, 2, 1, 3).contiguous()
            context = context.view(context.size(0), context.size(1), _WIDTH)
            rows = self.first(self.dense(context) + rows)
            return self.second(self.down(nn.functional.gelu(self.up(rows))) + rows)

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(50, _WIDTH), nn.LayerNorm(_WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = (1.0 - mask.unsqueeze(1).unsqueeze(2).to(torch.float32)) * -10000.0
            rows = self.norm(self.table(ids))
            for layer in self.layers:
                rows = layer(rows, hidden)
            return rows

    torch.manual_seed(0)
    return Bert().eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    axes = {0: "batch_size", 1: "seq_len"}
    torch.onnx.export(
        _bert(),
        tuple(torch.from_numpy(array) for array in _FEEDS.values()),
        str(path),
        input_names=list(_FEEDS),
        output_names=["y"],
        dynamic_axes=dict.fromkeys((*_FEEDS, "y"), axes),
        opset_version=17,
        dynamo=False,
    )
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op_type", ["Attention", "MultiHeadAttention"])
def test_every_attention_of_an_optimised_bert_is_read(exported: Path, op_type: str) -> None:
    """Both layers are read, though ONNX infers no shape after the first; each output agrees with the oracle."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    options.use_multi_head_attention = op_type == "MultiHeadAttention"
    written = optimizer.optimize_model(
        str(exported),
        model_type="bert",
        num_heads=_HEADS,
        hidden_size=_WIDTH,
        optimization_options=options,
        use_gpu=False,
        opt_level=0,
    )
    path = exported.with_name(f"{op_type}.onnx")
    written.save_model_to_file(str(path))
    model = load_model(path)
    assert model.node_counts()[op_type] == _LAYERS
    findings = find_attentions(model.ir)
    assert [found.dialect for found in findings.found] == [f"onnxruntime {op_type}"] * _LAYERS
    attentions = [found.attention for found in findings.found]
    assert None not in attentions, [found.reason for found in findings.found]
    tapped = OnnxModel(ir=findings.model, sites=tuple(one.site for one in attentions if one is not None))
    arrays = {**tapped.constants(), **_FEEDS, **run(tapped.tapped(), _FEEDS)}
    np.testing.assert_array_equal(arrays[model.output_names[0]], run(model, _FEEDS)[model.output_names[0]])
    for found in findings.found:
        site = Tapped(found=found, model=findings.model, arrays=arrays, source=model, feeds=_FEEDS)
        assert site.judged().verdict is Verdict.OK
