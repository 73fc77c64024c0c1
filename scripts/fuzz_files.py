"""Fuzz the reader with damaged files: print every exception that is not one of our errors; exit 1 if there is any.

Run from the root of the repository: `python -m scripts.fuzz_files --seed 0 --count 2000`. It is a separate process, so
that a crash of onnx's native code is detected; with `--verbose`, the last printed seed caused it.
Each file is loaded, hashed and inspected, its values are read, its attentions are found and converted to a form.
"""

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from tests.graph.mutations import damaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        if options.verbose:
            print(seed, end=" ", flush=True)
        outcome = one_file(seed)
        outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("escaped") or options.verbose:
            print(f"seed {seed}: {outcome}", flush=True)
    print(", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    return 1 if outcomes["escaped"] else 0


def one_file(seed: int) -> str:
    """The outcome of one damaged file: "refused: ...", "read" or "escaped: ..."."""
    with tempfile.TemporaryDirectory() as folder:
        path = damaged(seed, Path(folder))
        before = sorted(Path(folder).rglob("*"))
        try:
            model = load_model(path)
        except SdpaOnnxError as error:
            outcome = f"refused: {error}"
        except Exception:  # noqa: BLE001  # the fault that this script looks for
            return f"escaped: load\n{traceback.format_exc()}"
        else:
            outcome = _used(model, seed)
        return outcome if sorted(Path(folder).rglob("*")) == before else "escaped: a file was written"


def _used(model: OnnxModel, seed: int) -> str:
    form = list(Form)[seed // 6 % len(Form)]
    steps: dict[str, Callable[[], object]] = {
        "tap": lambda: model.tapped().to_bytes(),
        "hash": model.content_hash,
        "link": model.linked,
        "find": lambda: find_attentions(model.ir),
        "inspect": lambda: inspect_model(model, target="m"),
        f"convert {form.value}": lambda: _converted(model, form),
    }
    for name, step in steps.items():
        try:
            step()
        except SdpaOnnxError:
            pass
        except Exception:  # noqa: BLE001
            return f"escaped: {name}\n{traceback.format_exc()}"
    return "read"


def _converted(model: OnnxModel, form: Form) -> bytes:
    return convert_model(model, form).model.to_bytes()


if __name__ == "__main__":
    sys.exit(main())
