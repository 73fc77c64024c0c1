"""ONNX Runtime's own CPU provider, and what every provider of ONNX Runtime shares: sessions and their bindings."""

from __future__ import annotations

import ctypes
import functools
import math
import platform
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import ort_errors
from ..arrays import BFLOAT16, ONNX_TYPES, Bits, read_bits
from ..onnxruntime_import import import_onnxruntime
from ..pipe import RefusalError
from ..profile import Profile, read_profile

__all__ = ["OrtArm", "OrtCpu", "OrtPrepared", "package_version", "plain_settings", "session_options"]

# Of SessionOptions; all other settings are session configuration entries, which have a dot in their name.
_NUMBERS = ("intra_op_num_threads", "inter_op_num_threads", "log_severity_level")
_SWITCHES = ("enable_mem_pattern", "enable_mem_reuse", "enable_cpu_mem_arena", "use_deterministic_compute")
_WORDS = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
_ENTRIES = ("session.", "optimization.", "mlas.", "ep.", "ep_factory.")
_PROVIDER_OPTION = "provider."
# Source: onnxruntime_session_options_config_keys.h (1.32.0).
_FOLDER = "session.model_external_initializers_file_folder_path"
_RECORD = "session.record_ep_graph_assignment_info"
_OPTIMISED_DATA = "session.optimized_model_external_initializers_file_name"

# ONNX Runtime's words for types that differ from numpy's, and its only one for text.
_TYPES = {**ONNX_TYPES, "float": ONNX_TYPES["float32"], "double": ONNX_TYPES["float64"], "string": 8}
# ORT's severity "fatal": what fails is raised here, not printed by ORT as well.
_SILENT = 4
# Without these there is no attention; the provider has no bfloat16 kernel of either (onnxruntime 1.32.0).
_NO_BFLOAT16 = frozenset({"Attention", "MatMul", "Softmax"})


class OrtCpu:
    """ONNX Runtime with exactly one provider, `CPUExecutionProvider`."""

    name = "ort-cpu"
    measures_time = True
    takes_options = True
    install = "pip install onnxruntime"

    def version(self) -> str:
        """Such as "onnxruntime 1.32.0"."""
        return package_version()

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """See `plain_settings`."""
        return plain_settings(threads=threads, optimise=optimise)

    def refuses(self, nodes: list[Any]) -> str | None:
        """Refuse bfloat16 where the provider has no kernel for it."""
        for node in nodes:
            if node["op_type"] in _NO_BFLOAT16 and "bfloat16" in node["types"]:
                return f"has no bfloat16 kernel for {node['op_type']}"
        return None

    def precision(self, dtype: str, purpose: str) -> str:
        """The declared arithmetic.

        On x86-64 float16 is cast to float32 for every product and sum: the output
        is off by 1.03 units of float16 roundoff at 4096 keys (measured, onnxruntime
        1.32.0, Attention and MatMul-Softmax-MatMul). On 64-bit ARM, MLAS has
        kernels that add in float16; there the weaker word is declared, unmeasured.
        """
        is_arm = platform.machine().lower() in ("aarch64", "arm64")
        return "float16-accumulation" if dtype == "float16" and is_arm else dtype

    def explain(self, text: str) -> str:
        """See `ort_errors.clean_message`."""
        return ort_errors.clean_message(text)

    def failing_node(self, text: str) -> str | None:
        """See `ort_errors.failing_node`."""
        return ort_errors.failing_node(text)

    def open(self, job: dict[str, Any]) -> OrtArm:
        """Create the session of a job."""
        return OrtArm(job)


def plain_settings(*, threads: int, optimise: bool, provider: str = "CPUExecutionProvider") -> dict[str, Any]:
    """All settings of a session of ONNX Runtime, as plain values.

    Returns:
        Attributes of SessionOptions by name, session configuration entries by their name (with a dot), "provider" and
        "device". Options of the provider are "provider.NAME".
    """
    settings: dict[str, Any] = {
        "provider": provider,
        "device": "cpu",
        "intra_op_num_threads": threads,
        "inter_op_num_threads": 1,
        "log_severity_level": _SILENT,
        "graph_optimization_level": "ORT_ENABLE_ALL" if optimise else "ORT_DISABLE_ALL",
        _RECORD: "1",
    }
    if threads == 1:
        settings["session.intra_op.allow_spinning"] = "0"
    return settings


class OrtPrepared:
    """Bound inputs, and outputs that ONNX Runtime allocates at the first run and that stay bound from then on."""

    def __init__(self, session: Any, names: list[str], feeds: dict[str, Bits], device: str) -> None:
        self._session = session
        self._names = names
        self._device = device
        self.binding = session.io_binding()
        # The binding holds bare pointers into these.
        self._kept = [_bind_input(self.binding, name, bits, device) for name, bits in feeds.items()]
        for name in names:
            self.binding.bind_output(name, device)

    def first_run(self) -> Callable[[], object]:
        """Run once; give the call that runs again into the same outputs."""
        self._session.run_with_iobinding(self.binding)
        self._fix_outputs()
        call = functools.partial(self._session.run_with_iobinding, self.binding)
        call.prepared = self  # type: ignore[attr-defined]  # lives as long as the call
        return call

    def outputs(self) -> dict[str, Bits]:
        """What the bound run wrote, by output name."""
        self.binding.synchronize_outputs()
        return {name: _read(value) for name, value in zip(self._names, self.binding.get_outputs())}

    def _fix_outputs(self) -> None:
        self.binding.synchronize_outputs()
        # Until 1.19 at least these are views of the binding's own values: clearing those first is a crash.
        values = list(self.binding.get_outputs())
        for name, value in zip(self._names, values):
            self.binding.bind_ortvalue_output(name, value)
        self._kept.extend(values)


class OrtArm:
    """A session, and its bindings."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self.device: str = job["settings"].get("device", "cpu")
        self._provider: str = job["settings"].get("provider", "CPUExecutionProvider")
        self._optimised: str | None = None
        options = session_options(job["settings"])
        if job.get("report") is not None:
            self._optimised = _write_optimised(options, job["report"])
        self.session = self._open(options)
        self._names = [output.name for output in self.session.get_outputs()]

    def prepare(self, feeds: dict[str, Bits]) -> OrtPrepared:
        """Bind inputs; nothing runs."""
        takes = {value.name for value in self.session.get_inputs()}
        taken = {name: bits for name, bits in feeds.items() if name in takes}
        return OrtPrepared(self.session, self._names, taken, self.device)

    def profile(self, calls: int) -> Profile:
        """Medians over calls, by the profile of a session apart; see `read_profile`."""
        with tempfile.TemporaryDirectory() as folder:
            options = session_options(self._job["settings"])
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = self._open(options)
            call = OrtPrepared(session, self._names, read_bits(self._job["feeds"]), self.device).first_run()
            for _ in range(calls):
                call()
            return read_profile(Path(session.end_profiling()), calls)

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """Nodes by provider and operator; the graph after optimisation in a file in the folder."""
        optimised = self._optimised
        if with_graph and optimised is None:
            options = session_options(self._job["settings"])
            optimised = _write_optimised(options, folder)
            self._open(options)
        threads = self.session.get_session_options().intra_op_num_threads
        return {
            "assigned": self._assigned(),
            "provider": self._provider,
            "optimised": optimised,
            "threads": threads,
        }

    def close(self) -> None:
        """Free what is bound."""
        self.session = None

    def _assigned(self) -> dict[str, dict[str, int]]:
        # Older versions do not tell, and none does unasked.
        is_asked = str(self._job["settings"].get(_RECORD)) == "1"
        if not (is_asked and hasattr(self.session, "get_provider_graph_assignment_info")):
            return {self._provider: {}}
        found: dict[str, Counter[str]] = {}
        for part in self.session.get_provider_graph_assignment_info():
            found.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
        return {name: dict(operators) for name, operators in found.items()}

    def _open(self, options: Any) -> Any:
        model: str | bytes = self._job["model"]
        if self._job["folder"] is not None:
            model = Path(model).read_bytes() if isinstance(model, str) else model
            options.add_session_config_entry(_FOLDER, self._job["folder"])
        session = self._create(model, options)
        # ORT's own run() reopens a session whose provider failed on the CPU, for good, with a line on stdout.
        session.disable_fallback()
        got = session.get_providers()
        if not got or got[0] != self._provider:
            raise RefusalError(f"asked for {self._provider} and got {', '.join(got)}{self._lost()}")
        return session

    def _create(self, model: str | bytes, options: Any) -> Any:
        providers = [(self._provider, self._provider_options())]
        return import_onnxruntime().InferenceSession(model, options, providers=providers)

    def _provider_options(self) -> dict[str, str]:
        settings = self._job["settings"].items()
        return {key[len(_PROVIDER_OPTION) :]: str(value) for key, value in settings if key.startswith(_PROVIDER_OPTION)}

    def _require_nodes(self, advice: str) -> None:
        """Refuse a model of which the provider takes no node: then the CPU provider is what runs."""
        assigned = self._assigned()
        if any(assigned.values()) and not assigned.get(self._provider):  # an older version does not report nodes
            took = ", ".join(f"{name} {sum(operators.values())}" for name, operators in sorted(assigned.items()))
            raise RefusalError(f"runs no node of the model on {self._provider}; nodes by provider: {took}. {advice}")

    def _lost(self) -> str:
        """Why the provider is not there, after a colon, and what to do; "" where that is not known."""
        return ""


def package_version() -> str:
    """Of the onnxruntime that this environment has, e.g. "onnxruntime 1.32.0"."""
    return f"onnxruntime {import_onnxruntime().__version__}"


def _write_optimised(options: Any, folder: str) -> str:
    """Have ONNX Runtime write the graph after optimisation; its file."""
    path = str(Path(folder) / "optimised.onnx")
    options.optimized_model_filepath = path
    # Tensors of a model above 2 GiB have a file of their own.
    options.add_session_config_entry(_OPTIMISED_DATA, "optimised.onnx.data")
    return path


def session_options(settings: dict[str, Any]) -> Any:
    """ONNX Runtime's options for a session.

    Raises:
        RefusalError: A setting that is not known, or a value that it does not take.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    for key, value in settings.items():
        if key in ("provider", "device") or key.startswith(_PROVIDER_OPTION):
            continue
        try:
            if key in _NUMBERS:
                setattr(options, key, int(value))
            elif key in _SWITCHES:
                setattr(options, key, _switch(value))
            elif key in _WORDS:
                setattr(options, key, getattr(getattr(ort, _WORDS[key]), value))
            elif key.startswith(_ENTRIES):
                options.add_session_config_entry(key, str(value))
            else:
                raise RefusalError(f"has no session setting '{key}'")
        except (ValueError, TypeError, AttributeError) as error:
            raise RefusalError(f"does not take '{value}' for the setting '{key}'") from error
    return options


def _switch(value: Any) -> bool:
    words = {"1": True, "true": True, "0": False, "false": False}
    word = str(value).lower()
    if word not in words:
        raise ValueError(value)
    return words[word]


def _bind_input(binding: Any, name: str, bits: Bits, device: str) -> Any:
    array, onnx_type = bits
    value = import_onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)
    # Versions before 1.20 take types of numpy only.
    element = array.dtype.type if array.dtype.name in ONNX_TYPES and onnx_type != BFLOAT16 else onnx_type
    binding.bind_input(name, device, 0, element, list(array.shape), value.data_ptr())
    return value


def _read(value: Any) -> Bits:
    word = value.data_type()
    onnx_type = _TYPES.get(word[len("tensor(") : -1], 0)
    if onnx_type != BFLOAT16:
        return np.array(value.numpy()), onnx_type
    shape = value.shape()
    count = math.prod(shape)
    if value.device_name() != "cpu":
        raise RefusalError("cannot read bfloat16 from the memory of a device")
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(bits, dtype=np.uint16).reshape(shape), onnx_type
