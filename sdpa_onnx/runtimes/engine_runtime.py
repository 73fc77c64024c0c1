"""A runtime of an engine: models in, checked arrays in, fresh arrays out, one sentence where the engine fails.

Everything that one runtime does in its own way is in its engine; see `runtimes.engine`.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.array_files import from_bits, to_bits
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport, Supported, Unsupported, not_importable
from sdpa_onnx.runtimes.engine import Engine, EngineNode
from sdpa_onnx.runtimes.feeds import check_sizes_fit, checked_feeds
from sdpa_onnx.runtimes.live_session import LiveSession
from sdpa_onnx.runtimes.ran_report import engine_report, is_unread
from sdpa_onnx.runtimes.worker.loaded import Loaded
from sdpa_onnx.runtimes.worker.pipe import is_refusal

__all__ = [
    "EngineBoundRun",
    "EngineRuntime",
    "EngineSession",
    "engine_precision",
    "engine_settings",
    "failure_text",
    "graph_names",
]

Array = NDArray[np.generic]


class EngineRuntime:
    """An engine as a `runtimes.base.Runtime`; the engine runs in this process.

    Args:
        engine: It.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name
        self.measures_time: bool = getattr(engine, "measures_time", True)

    def available(self) -> Supported | Unsupported:
        """Whether its package can be imported, and its device is there."""
        try:
            self.engine.version()
            unavailable = getattr(self.engine, "unavailable", None)
            reason = unavailable() if unavailable is not None else None
        except ImportError as error:
            return not_importable(error, _missing(self.engine, error))
        return Supported() if reason is None else Unsupported(reason)

    def version(self) -> str:
        """Such as "onnxruntime 1.32.0"."""
        return self.engine.version()

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """What the engine says of the model's nodes, before anything is loaded."""
        refuses = getattr(self.engine, "refuses", None)
        reason = refuses(engine_nodes(model)) if refuses is not None else None
        return Supported() if reason is None else Unsupported(f"{self.name} {reason}")

    def load(self, model: OnnxModel, options: LoadOptions) -> "EngineSession":
        """Load a model; see `Runtime.load`."""
        match self.available():
            case Unsupported(reason):
                raise RuntimeUnavailableError(f"Runtime '{self.name}' is not available: {reason}.")
            case Supported():
                pass
        return EngineSession(self.engine, model, options)


class EngineBoundRun:
    """Runs one bound problem per call; copies nothing until `outputs` is called."""

    __slots__ = ("_call", "_engine", "_prepared")

    def __init__(self, engine: Engine, prepared: Any) -> None:
        self._engine = engine
        self._prepared = prepared
        with _failures(engine):
            self._call: Callable[[], object] = prepared.first_run()

    def __call__(self) -> None:
        with _failures(self._engine):
            self._call()

    def outputs(self) -> dict[str, Array]:
        """Copies of what the last call wrote, by output name."""
        with _failures(self._engine):
            return from_bits(self._prepared.outputs())


class EngineSession(LiveSession[Loaded]):
    """A model loaded by an engine; see `runtimes.base.Session`.

    Raises:
        SessionError: If the engine refuses the model; the cause is kept.
    """

    def __init__(self, engine: Engine, model: OnnxModel, options: LoadOptions) -> None:
        self._engine = engine
        self._model = model
        self._options = options
        self._linked = model.linked()  # kept: it may own a folder that the engine reads from
        self._report: RanReport | None = None
        if not options.reports or is_unread(model):
            loaded = self._open(None)
        else:
            with tempfile.TemporaryDirectory() as folder:
                loaded = self._open(folder)
                try:
                    self._report = self._read_report(loaded, folder)
                except BaseException:
                    loaded.close()  # it may be a process
                    raise
        super().__init__(engine.name, loaded)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.close()
        super().__exit__(kind, error, trace)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; see `Session.run`."""
        return self.bind(inputs).outputs()

    def bind(self, inputs: Mapping[str, Array]) -> EngineBoundRun:
        """Bind for timing; see `Session.bind`. Runs once."""
        loaded = self.live
        feeds = checked_feeds(self._engine.name, self._model, inputs)
        if not getattr(self._engine, "checks_sizes", True):
            check_sizes_fit(self._engine.name, self._model, feeds)
        with _failures(self._engine):
            prepared = loaded.prepare(to_bits(feeds))
        return EngineBoundRun(self._engine, prepared)

    def ran(self) -> RanReport:
        """Say what really runs; see `Session.ran`. Read at the first call, or while it was loaded, then kept."""
        loaded = self.live
        if self._report is None:
            with tempfile.TemporaryDirectory() as folder:
                self._report = self._read_report(loaded, folder)
        return self._report

    def _open(self, report: str | None) -> Loaded:
        options = self._options
        folder = self._linked.folder
        job = {
            "model": self._linked.message,
            "folder": None if folder is None else str(folder),
            "threads": options.threads,
            "settings": engine_settings(self._engine, options),
            "purpose": options.purpose.value,
            "optimise": options.optimise,
            "report": report,
            "copies": 1,
            **graph_names(self._model),
        }
        with _failures(self._engine, what="cannot load the model"):
            return Loaded(self._engine, job)

    def _read_report(self, loaded: Loaded, folder: str) -> RanReport:
        with _failures(self._engine):
            facts = loaded.ran(folder, with_graph=not is_unread(self._model))
        precision = engine_precision(self._engine, self._model, self._options.purpose)
        return engine_report(
            self._model, facts, engine=self._engine.name, precision=precision, threads=self._options.threads
        )


def engine_settings(engine: Engine, options: LoadOptions) -> dict[str, object]:
    """What an engine is configured with, as plain values; a worker process receives the same."""
    settings = getattr(engine, "settings", None)
    if settings is None:
        return {}
    found: dict[str, object] = settings(
        threads=options.threads, purpose=options.purpose.value, optimise=options.optimise
    )
    return found


def engine_precision(engine: Engine, model: OnnxModel, purpose: Purpose) -> str:
    """The declared arithmetic, a key of `core.attention.precision.PRECISIONS`."""
    dtype = model.facts.attention_dtype.value
    precision = getattr(engine, "precision", None)
    return str(precision(dtype, purpose.value)) if precision is not None else dtype


def graph_names(model: OnnxModel) -> dict[str, object]:
    """The names of a model's inputs and outputs in their order, and the inputs that may be left out."""
    defaults = [name for name in model.input_names if name in model.ir.graph.initializers]
    return {"inputs": list(model.input_names), "outputs": list(model.output_names), "defaults": defaults}


def engine_nodes(model: OnnxModel) -> list[EngineNode]:
    """Every node of a model, those in bodies and functions too."""
    nodes = [*model.ir.graph.all_nodes()]
    for function in model.ir.functions.values():
        nodes += function.all_nodes()
    return [_engine_node(node) for node in nodes]


def failure_text(engine: Engine, who: str, text: str, *, what: str) -> str:
    """The sentence for what an engine's runtime raised.

    Args:
        engine: It.
        who: Its name, and where it runs.
        text: Of the exception.
        what: "failed" or "cannot load the model".
    """
    failing_node = getattr(engine, "failing_node", None)
    node = failing_node(text) if failing_node is not None else None
    explain = getattr(engine, "explain", _one_line)
    where = f" at node '{node}'" if node else ""
    return f"{who} {what}{where}: {explain(text)}."


@contextmanager
def _failures(engine: Engine, *, what: str = "failed") -> Iterator[None]:
    """What an engine or its runtime raises is one sentence; a lack of memory stays what it is."""
    try:
        yield
    except (SessionError, MemoryError):
        raise
    except Exception as error:
        if is_refusal(error):
            raise SessionError(f"{engine.name} {str(error).rstrip('.')}.") from error
        text = str(error) or type(error).__name__
        raise SessionError(failure_text(engine, engine.name, text, what=what)) from error


def _missing(engine: Engine, error: ImportError) -> str:
    install = getattr(engine, "install", None)
    return f"{error.name or engine.name} is missing{f': {install}' if install is not None else ''}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _engine_node(node: ir.Node) -> EngineNode:
    return EngineNode(
        domain="" if node.domain == "ai.onnx" else node.domain,
        op_type=node.op_type,
        types=[_type_name(value) for value in node.inputs],
        inputs=[value is not None for value in node.inputs],
        attributes={name: each.value for name, each in node.attributes.items() if _is_plain(each)},
    )


def _is_plain(attribute: ir.Attr) -> bool:
    return isinstance(attribute.value, int | float | str | tuple | list)


def _type_name(value: ir.Value | None) -> str | None:
    if value is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return value.dtype.numpy().name
