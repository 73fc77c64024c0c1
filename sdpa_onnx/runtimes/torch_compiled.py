"""PyTorch with `torch.compile`: the module of a model, compiled by its default compiler at the first run.

No registered runtime: only `bench` times it, in a worker process, next to the module in eager mode.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Supported, Unsupported, get_runtime
from sdpa_onnx.runtimes.torch_baseline import TorchBaseline
from sdpa_onnx.runtimes.torch_session import TorchSession

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TORCH_COMPILE", "CompiledTorch", "module_runtime", "use_compile_cache"]

TORCH_COMPILE = "torch-compile"
# Source: torch/_inductor/runtime/cache_dir_utils.py and config.py (2.13); read when the compiler is imported.
_CACHE_VARIABLE, _THREADS_VARIABLE = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"


class CompiledTorch(TorchBaseline):
    """The module after `torch.compile`, with the shapes of the first run."""

    name = TORCH_COMPILE

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """What PyTorch in eager mode supports, if there is a C++ compiler."""
        compiler = _compiler()
        if shutil.which(compiler) is None:
            return Unsupported(
                f"torch.compile needs a C++ compiler, and there is no '{compiler}': install one, or name it in CXX"
            )
        return super().supports(model)

    def _session(self, model: OnnxModel, module: "nn.Module", options: LoadOptions) -> TorchSession:
        return _CompiledSession(model, module, options)


class _CompiledSession(TorchSession):
    """Compiles at its first run."""

    def _called(self) -> Callable[..., object]:
        import torch

        compiled: Callable[..., object] = torch.compile(self.live)
        return compiled

    def _first_call(self, call: Callable[[], object]) -> object:
        """Run and compile; the operators are not watched, because a watched call is not compiled."""
        try:
            return call()
        except Exception as error:  # the compiler raises errors of many classes
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            # The first line may only announce which part of the compiler raised.
            what = next((line for line in lines if not line.endswith(":")), type(error).__name__)
            raise SessionError(f"torch.compile failed: {what.rstrip('.')}.") from error

    def ran(self) -> RanReport:
        """How many graphs were compiled, and a warning if Python code runs between them; see `Session.ran`."""
        from torch._dynamo.utils import counters

        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        warnings = (f"torch.compile left {breaks} graph breaks, at which Python code runs.",) if breaks else ()
        return RanReport(
            providers={"torch.compile": graphs},
            node_counts={"compiled graph": graphs},
            precision=self._model.facts.attention_dtype.value,
            warnings=warnings,
        )


def module_runtime(name: str) -> Runtime:
    """A runtime by name, this one included.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: As `get_runtime`.
    """
    return CompiledTorch() if name == TORCH_COMPILE else get_runtime(name)


def use_compile_cache(folder: Path) -> None:
    """Keep what is compiled in a folder of this comparison, unless the user names one.

    The cache of earlier programs would hide how long compiling takes; later launches of the comparison read this one.
    """
    os.environ.setdefault(_CACHE_VARIABLE, str(folder / "torch_compile"))
    # Its pool of compiler processes would import torch in each of them, and run beside the arms that are timed.
    os.environ.setdefault(_THREADS_VARIABLE, "1")


def _compiler() -> str:
    """Source: torch/_inductor/config.py (2.13), `cpp.cxx`."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
