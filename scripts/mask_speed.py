"""Time `blocked` and `ort-gqa` against the files of three decoders whose masks hide causality, windows and padding.

    python -m scripts.mask_speed [--lengths 1024 2048] [--padded 1024] [--budget 75]

Exports GPT-2, Llama and Mistral (window of 256) of transformers with random weights (two layers, 512 wide, 8 heads) at
opset 18 into a temporary folder, then runs `convert` (with its proof) and `bench` on one thread for each: one sample
without padding, and four samples of which the last three are padded on the right. Their output has the verdicts;
`bench` prints the processor's name. `ort-gqa` is left out where it cannot be written or proved.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from tests.transformers import architectures
from tests.transformers.architectures import TEXT, VOCABULARY, Architecture, export

_FORMS = ("blocked", "ort-gqa")
# Share of the length that each sample of a padded batch fills.
_FILLED = (1.0, 0.5, 0.25, 0.125)
_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
}


def _gpt2(attention: str) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_layer": 2, "n_embd": 512, "n_head": 8, "vocab_size": 64, "n_positions": 4096}
    return GPT2Model(GPT2Config(attn_implementation=attention, **sizes))


def _llama(attention: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(attn_implementation=attention, **_SIZES))


def _mistral(attention: str) -> torch.nn.Module:
    from transformers import MistralConfig, MistralModel

    return MistralModel(MistralConfig(attn_implementation=attention, sliding_window=256, **_SIZES))


_BUILDERS: dict[str, Callable[[str], torch.nn.Module]] = {"gpt2": _gpt2, "llama": _llama, "mistral": _mistral}


def main() -> None:
    """Export, convert and time one decoder after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048])
    parser.add_argument("--padded", type=int, nargs="*", default=[1024], help="lengths of a batch with padding")
    parser.add_argument("--budget", type=float, default=75.0, help="seconds of each `bench`, starting included")
    chosen = parser.parse_args()
    models = {
        name: Architecture(sizes="none", build=build, inputs=TEXT, expected=2) for name, build in _BUILDERS.items()
    }
    with tempfile.TemporaryDirectory() as folder, patch.dict(architectures.ARCHITECTURES, models):
        for name in models:
            files = _converted(name, Path(folder))
            for length in chosen.lengths:
                print(f"\n{name}: length {length}", flush=True)
                _bench(files, ("--size", "batch=1", "--size", f"length={length}"), chosen.budget)
            for length in chosen.padded:
                print(f"\n{name}: {_samples(length)} of {length} keys, padded on the right", flush=True)
                _bench(files, ("--inputs", str(_padded(length, Path(folder)))), chosen.budget)


def _converted(name: str, folder: Path) -> list[str]:
    """The source, and the forms that can be written and proved."""
    source = export(name, "dynamo-18", folder)
    files = [str(source)]
    for form in _FORMS:
        result = folder / f"{name}-{form}.onnx"
        print(f"\n{name}: convert to {form}", flush=True)
        if _run("convert", str(source), "-o", str(result), "--form", form) == 0:
            files.append(str(result))
    return files


def _samples(length: int) -> list[int]:
    return [int(share * length) for share in _FILLED]


def _padded(length: int, folder: Path) -> Path:
    """Inputs of a batch whose samples have different lengths, padded on the right."""
    path = folder / f"padded-{length}.npz"
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (len(_FILLED), length))
    np.savez(
        path, input_ids=ids, attention_mask=(np.arange(length) < np.array(_samples(length))[:, None]).astype(np.int64)
    )
    return path


def _bench(files: Sequence[str], inputs: Sequence[str], budget: float) -> None:
    _run("bench", *files, *inputs, "--threads", "1", "--budget", str(budget))


def _run(*command: str) -> int:
    return subprocess.run([sys.executable, "-m", "sdpa_onnx", *command], check=False).returncode


if __name__ == "__main__":
    main()
