"""Six architectures of transformers with random weights, real sizes cut down in layers only, as torch exports them.

Builds and exports; searches, converts and judges nothing. Nothing is downloaded: every model is made from its
configuration. Where a published initialisation leaves the logits without any spread, it is made wider, so that a
wrong scale shows.
"""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SEED = 20
LAYERS = 2
# Sizes that exporters trace; none of them is run later.
TRACED = {"batch": 2, "length": 11, "target": 7}

# Ids that are fed are below it.
VOCABULARY = 50

TEXT: Mapping[str, tuple[int | str, ...]] = {"input_ids": ("batch", "length"), "attention_mask": ("batch", "length")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model and how it is fed.

    Args:
        sizes: Whose published sizes it has.
        build: Makes it; takes how attention is computed (sdpa or eager).
        inputs: Axes of each input, in the order of its parameters: a number is a size, a word an open axis.
        expected: Attentions in it.
        cross: How many of them have queries and keys of different lengths.
        dynamo_attention: "sdpa", or "eager" where dynamo cannot export that.
    """

    sizes: str
    build: Callable[[str], torch.nn.Module]
    inputs: Mapping[str, tuple[int | str, ...]]
    expected: int
    cross: int = 0
    dynamo_attention: str = "sdpa"

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(size for shape in self.inputs.values() for size in shape if isinstance(size, str)))


class LastHiddenState(torch.nn.Module):
    """A model that takes tensors by position and gives its last hidden state."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options: dict[str, Any] = {} if "pixel_values" in names else {"use_cache": False}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), **self.options).last_hidden_state


def _bert(attention: str) -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=LAYERS, initializer_range=0.04, attn_implementation=attention)
    return BertModel(config, add_pooling_layer=False)


def _gpt2(attention: str) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(n_layer=LAYERS, initializer_range=0.04, attn_implementation=attention))


def _llama(attention: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            hidden_size=2048,
            intermediate_size=5632,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=64,
            num_hidden_layers=LAYERS,
            vocab_size=32000,
            rms_norm_eps=1e-5,
            attn_implementation=attention,
        )
    )


def _vit(attention: str) -> torch.nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(num_hidden_layers=LAYERS, initializer_range=0.04, attn_implementation=attention)
    return ViTModel(config, add_pooling_layer=False)


def _t5(attention: str) -> torch.nn.Module:
    from transformers import T5Config, T5Model

    return T5Model(T5Config(num_layers=LAYERS, num_decoder_layers=LAYERS, attn_implementation=attention))


def _whisper(attention: str) -> torch.nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(encoder_layers=LAYERS, decoder_layers=LAYERS, init_std=0.05, attn_implementation=attention)
    return WhisperModel(config)


def _tiny_llama(attention: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=1,
            vocab_size=VOCABULARY,
            initializer_range=0.3,
            head_dim=8,
            attn_implementation=attention,
        )
    )


def _tiny_t5(attention: str) -> torch.nn.Module:
    from transformers import T5Config, T5Model

    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "vocab_size": VOCABULARY}
    return T5Model(T5Config(num_layers=1, num_decoder_layers=1, attn_implementation=attention, **sizes))


ARCHITECTURES = {
    "bert": Architecture(sizes="bert-base", build=_bert, inputs=TEXT, expected=LAYERS),
    "gpt2": Architecture(sizes="gpt2", build=_gpt2, inputs=TEXT, expected=LAYERS),
    "llama": Architecture(sizes="TinyLlama 1.1B", build=_llama, inputs=TEXT, expected=LAYERS),
    "vit": Architecture(
        sizes="vit-base-patch16-224", build=_vit, inputs={"pixel_values": ("batch", 3, 224, 224)}, expected=LAYERS
    ),
    "t5": Architecture(
        sizes="t5-small",
        build=_t5,
        inputs=TEXT | {"decoder_input_ids": ("batch", "target")},
        expected=3 * LAYERS,
        cross=LAYERS,
        dynamo_attention="eager",
    ),
    "whisper": Architecture(
        sizes="whisper-tiny",
        build=_whisper,
        inputs={"input_features": ("batch", 80, 3000), "decoder_input_ids": ("batch", "target")},
        expected=3 * LAYERS,
        cross=LAYERS,
    ),
}
TINY = {
    "tiny-llama": Architecture(sizes="none", build=_tiny_llama, inputs=TEXT, expected=1),
    "tiny-t5": Architecture(
        sizes="none", build=_tiny_t5, inputs=TEXT | {"decoder_input_ids": ("batch", "target")}, expected=3, cross=1
    ),
}
EXPORTERS = ("dynamo-18", "torchscript-18", "dynamo-23")
# What the exporter says where it fails, by architecture, exporter and way of computing attention.
EXPORT_FAILS = {
    ("whisper", "torchscript-18", "sdpa"): "Exporting the operator 'aten::diff' to ONNX opset version 18",
    ("t5", "dynamo-18", "sdpa"): "Cannot view a tensor with shape",
}
# All pairs that an exporter can make. T5 has no Attention node in eager mode, so that opset 23 says nothing new.
PAIRS = [
    (name, exporter)
    for name in ARCHITECTURES
    for exporter in EXPORTERS
    if (name, exporter) not in {("whisper", "torchscript-18"), ("t5", "dynamo-23")}
]


def export(name: str, exporter: str, folder: Path, *, attention: str = "") -> Path:
    """Export an architecture with open batch and lengths.

    Args:
        name: Of the architecture.
        exporter: "dynamo" or "torchscript", and the opset.
        folder: Where to.
        attention: "sdpa" or "eager"; "" = as the architecture is converted.
    """
    architecture = (ARCHITECTURES | TINY)[name]
    is_dynamo = exporter.startswith("dynamo")
    torch.manual_seed(SEED)
    model = architecture.build(attention or (architecture.dynamo_attention if is_dynamo else "sdpa"))
    module = LastHiddenState(model, tuple(architecture.inputs))
    path = folder / f"{name}-{exporter}.onnx"
    export_module(module, architecture.inputs, exporter, path, output="last_hidden_state")
    return path


def export_module(
    module: torch.nn.Module, inputs: Mapping[str, tuple[int | str, ...]], exporter: str, path: Path, *, output: str
) -> None:
    """Export a module that takes tensors by position, with every named axis dynamic.

    Args:
        module: The module.
        inputs: Axes of each input: a number is a size, a word a dynamic axis.
        exporter: "dynamo" or "torchscript", and the opset.
        path: Where to.
        output: Name of its only output.
    """
    kind, opset = exporter.split("-")
    is_dynamo = kind == "dynamo"
    open_axes = {
        name: {axis: size for axis, size in enumerate(shape) if isinstance(size, str)} for name, shape in inputs.items()
    }
    options: dict[str, Any] = {
        "input_names": list(inputs),
        "output_names": [output],
        "opset_version": int(opset),
        "dynamo": is_dynamo,
    }
    if is_dynamo:
        words = dict.fromkeys(word for axes in open_axes.values() for word in axes.values())
        dims = {axis: torch.export.Dim(axis) for axis in words}
        shapes = tuple({axis: dims[word] for axis, word in axes.items()} for axes in open_axes.values())
        options |= {"dynamic_shapes": (shapes,), "external_data": False}
    else:
        options |= {"dynamic_axes": open_axes}
    with _quiet():
        torch.onnx.export(module.eval(), _traced(inputs), path, **options)


def without_notes(path: Path) -> None:
    """Take out where the exporter stood in which source file: paths of the machine."""
    import onnx

    proto = onnx.load(path)
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    del proto.graph.metadata_props[:], proto.metadata_props[:]
    onnx.save(proto, path)


def _traced(inputs: Mapping[str, tuple[int | str, ...]]) -> tuple[torch.Tensor, ...]:
    tensors = []
    for name, axes in inputs.items():
        shape = [TRACED[size] if isinstance(size, str) else size for size in axes]
        if name.endswith("ids"):
            tensors.append(torch.randint(1, VOCABULARY, shape))
        else:
            tensors.append(torch.ones(shape, dtype=torch.int64) if name == "attention_mask" else torch.randn(shape))
    return tuple(tensors)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress, no warnings of exporters, and no way to a network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
