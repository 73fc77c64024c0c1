"""One loaded ONNX Runtime model, for any execution provider.

Opens sessions, runs them through IO binding (the one way that carries bfloat16
and device memory), and writes the sentences of their errors. Which provider, and whether the one
that was requested is there, is decided by the runtime that uses this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport
from sdpa_onnx.runtimes.feeds import checked_feeds
from sdpa_onnx.runtimes.live_session import LiveSession
from sdpa_onnx.runtimes.onnxruntime_import import import_onnxruntime
from sdpa_onnx.runtimes.ort_errors import failure_text, ort_exceptions
from sdpa_onnx.runtimes.ort_ran import assigned_nodes, is_unread, read_ran, report_of_large
from sdpa_onnx.runtimes.ort_values import bind_input, read_arrays

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, SessionOptions

__all__ = ["OrtBoundRun", "OrtSession", "OrtTarget", "session_settings"]

Array = NDArray[np.generic]

# ORT's severity "fatal": what fails is raised here, not printed by ORT as well.
_SILENT = 4

_PROVIDER_OPTION = "provider."

# Where the tensor files of a model given as bytes lie, and a file for the tensors of an optimised model above 2 GiB.
# Source: onnxruntime_session_options_config_keys.h (1.32.0).
_FOLDER = "session.model_external_initializers_file_folder_path"
_OPTIMISED_DATA = "session.optimized_model_external_initializers_file_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtTarget:
    """What a session is opened for.

    Args:
        runtime: Our name of the runtime, for error texts.
        provider: Name of the execution provider.
        provider_options: Its options.
        device: Where bound inputs and outputs live: "cpu" or "cuda".
        precision: The declared arithmetic, a key of `core.attention.precision.PRECISIONS`.
    """

    runtime: str
    provider: str
    provider_options: Mapping[str, str]
    device: str
    precision: str


class OrtBoundRun:
    """Runs one bound problem per call; copies nothing until `outputs` is called."""

    __slots__ = ("_binding", "_fail", "_kept", "_names", "_run")

    def __init__(
        self,
        session: "InferenceSession",
        binding: "IOBinding",
        names: tuple[str, ...],
        kept: list["OrtValue"],
        fail: Callable[[Exception], SessionError],
    ) -> None:
        self._run = session.run_with_iobinding
        self._binding = binding
        self._names = names
        self._kept = kept  # the binding holds bare pointers into these
        self._fail = fail

    def __call__(self) -> None:
        try:
            self._run(self._binding)
            self._binding.synchronize_outputs()
        except ort_exceptions() as error:
            raise self._fail(error) from error

    def outputs(self) -> dict[str, Array]:
        """Copies of what the last call wrote, by output name."""
        self._binding.synchronize_outputs()
        return read_arrays(self._names, self._binding.get_outputs())


class OrtSession(LiveSession["InferenceSession"]):
    """A model loaded in ONNX Runtime; see `runtimes.base.Session`.

    Raises:
        SessionError: If ONNX Runtime refuses the model; the cause is kept.
    """

    def __init__(self, model: OnnxModel, target: OrtTarget, options: LoadOptions) -> None:
        self._model = model
        self._target = target
        self._options = options
        self._linked = model.linked()  # kept: it may own a folder that ORT reads from
        self._report: RanReport | None = None
        if options.reports and not is_unread(model):
            session, self._report = self._open_and_read()
        else:
            session = self._open(None)
        super().__init__(target.runtime, session)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; see `Session.run`. Inputs and outputs pass through host memory."""
        binding, _kept = self._bound_inputs(inputs, device="cpu")
        self._run_into(binding, device="cpu")
        return read_arrays(self._model.output_names, binding.get_outputs())

    def bind(self, inputs: Mapping[str, Array]) -> OrtBoundRun:
        """Bind for timing; see `Session.bind`. Runs once, to learn the sizes of the outputs."""
        binding, kept = self._bound_inputs(inputs, device=self._target.device)
        self._run_into(binding, device=self._target.device)
        values = list(binding.get_outputs())
        binding.clear_binding_outputs()
        for name, value in zip(self._model.output_names, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        return OrtBoundRun(self.live, binding, self._model.output_names, [*kept, *values], self._failure)

    def ran(self) -> RanReport:
        """Say what really runs; see `Session.ran`. Read at the first call, or while it was loaded, then kept."""
        if self._report is None:
            target = self._target
            self._report = (
                report_of_large(
                    assigned=assigned_nodes(self.live), provider=target.provider, precision=target.precision
                )
                if is_unread(self._model)
                else self._open_and_read()[1]
            )
        return self._report

    def _open_and_read(self) -> tuple["InferenceSession", RanReport]:
        """A new session, and what it runs."""
        target = self._target
        return read_ran(self._model, load=self._open, provider=target.provider, precision=target.precision)

    def _open(self, optimised_path: Path | None) -> "InferenceSession":
        ort = import_onnxruntime()
        options = _session_options(session_settings(self._target, self._options))
        if self._linked.folder is not None:
            options.add_session_config_entry(_FOLDER, str(self._linked.folder))
        if optimised_path is not None:
            options.optimized_model_filepath = str(optimised_path)
            if not self._model.fits_one_message:
                options.add_session_config_entry(_OPTIMISED_DATA, f"{optimised_path.name}.data")
        provider = (self._target.provider, dict(self._target.provider_options))
        try:
            session: InferenceSession = ort.InferenceSession(self._linked.message, options, providers=[provider])
        except ort_exceptions() as error:
            raise self._failure(error, what="cannot load the model") from error
        # ORT's own run() reopens a session whose provider failed on the CPU, for good, with a line on stdout.
        session.disable_fallback()
        return session

    def _bound_inputs(self, inputs: Mapping[str, Array], *, device: str) -> tuple["IOBinding", list["OrtValue"]]:
        feeds = checked_feeds(self._target.runtime, self._model, inputs)
        binding = self.live.io_binding()
        kept = [bind_input(binding, name, array, device=device) for name, array in feeds.items()]
        return binding, kept

    def _run_into(self, binding: "IOBinding", *, device: str) -> None:
        for name in self._model.output_names:
            binding.bind_output(name, device)
        try:
            self.live.run_with_iobinding(binding)
            binding.synchronize_outputs()
        except ort_exceptions() as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception, *, what: str = "failed") -> SessionError:
        return SessionError(failure_text(self._target.runtime, str(error), what=what))


def session_settings(target: OrtTarget, load: LoadOptions) -> dict[str, str | int]:
    """All settings of a session of ONNX Runtime, as plain values; a worker process receives the same.

    Returns:
        Attributes of SessionOptions by name, session configuration entries by their name (with a dot), "provider",
        its options as "provider.NAME", and "device".
    """
    settings: dict[str, str | int] = {
        "provider": target.provider,
        "device": target.device,
        "intra_op_num_threads": load.threads,
        "inter_op_num_threads": 1,
        "log_severity_level": _SILENT,
        "graph_optimization_level": "ORT_ENABLE_ALL" if load.optimise else "ORT_DISABLE_ALL",
        "session.record_ep_graph_assignment_info": "1",
    }
    if load.threads == 1:
        settings["session.intra_op.allow_spinning"] = "0"
    return settings | {f"{_PROVIDER_OPTION}{name}": value for name, value in target.provider_options.items()}


def _session_options(settings: Mapping[str, str | int]) -> "SessionOptions":
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    for key, value in settings.items():
        if key in ("provider", "device") or key.startswith(_PROVIDER_OPTION):
            continue
        if key == "graph_optimization_level":
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, str(value))
        elif "." in key:
            options.add_session_config_entry(key, str(value))
        else:
            setattr(options, key, value)
    return options
