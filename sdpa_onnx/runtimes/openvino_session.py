"""One model compiled by OpenVINO for the CPU: arrays in, fresh arrays out.

OpenVINO casts what does not fit, runs again on the last request's array where
one is missing, and gives views that the next run overwrites; here every array
passes `feeds`, every run has a request of its own, every result is a copy.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.files.saved_files import copied
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport
from sdpa_onnx.runtimes.feeds import check_sizes_fit, checked_feeds
from sdpa_onnx.runtimes.live_session import LiveSession
from sdpa_onnx.runtimes.openvino_import import import_openvino
from sdpa_onnx.runtimes.openvino_ran import read_ran

if TYPE_CHECKING:
    from openvino import CompiledModel, InferRequest, Tensor

__all__ = ["RUNTIME", "OpenVinoBoundRun", "OpenVinoSession", "clean_message", "configuration"]

RUNTIME = "openvino"

Array = NDArray[np.generic]

# OpenVINO raises RuntimeError; its Python layer the others.
_FAILURES = (RuntimeError, TypeError, ValueError, KeyError)
# Places in OpenVINO's source, headings and advertisements around the sentence that says what is wrong.
_NOISE = re.compile(r"^(?:Exception from \S+:|FrontEnd API failed with \w+:|Summary:|To facilitate .*)$")
_UNREAD = re.compile(r'^Unable to read the model: "[^"]*"\.?')
_CHECK = re.compile(r"^Check '(?P<condition>.*)' failed at \S+?:?$")


class OpenVinoBoundRun:
    """Runs one bound problem per call; copies nothing until `outputs` is asked for."""

    __slots__ = ("_kept", "_names", "_request")

    def __init__(self, request: "InferRequest", names: tuple[str, ...], kept: list["Tensor"]) -> None:
        self._request = request
        self._names = names
        self._kept = kept  # the request holds bare pointers into these

    def __call__(self) -> None:
        try:
            self._request.infer(share_outputs=True)
        except _FAILURES as error:
            raise _failure(error) from error

    def outputs(self) -> dict[str, Array]:
        """Copies of what the last call wrote, by output name."""
        return _read_outputs(self._request, self._names)


class OpenVinoSession(LiveSession["CompiledModel"]):
    """A model in OpenVINO; see `runtimes.base.Session`.

    Raises:
        SessionError: If OpenVINO refuses the model; the cause is kept.
    """

    def __init__(self, model: OnnxModel, options: LoadOptions) -> None:
        self._model = model
        self._options = options
        core = import_openvino().Core()
        try:
            with contextlib.ExitStack() as stack:
                # OpenVINO reads data files beside a file only; bytes are for it a file of the current folder.
                source = model.to_bytes() if model.fits_one_message else stack.enter_context(copied(model.ir))
                compiled = core.compile_model(core.read_model(source), "CPU", configuration(options))
        except _FAILURES as error:
            raise _failure(error, what="cannot load the model") from error
        super().__init__(RUNTIME, compiled)
        self._ports = _input_ports(model, compiled)
        if len(compiled.outputs) != len(model.output_names):
            raise SessionError(
                f"{RUNTIME} cannot load the model: of {len(model.output_names)} outputs it kept "
                f"{len(compiled.outputs)}."
            )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; see `Session.run`."""
        return self.bind(inputs).outputs()

    def bind(self, inputs: Mapping[str, Array]) -> OpenVinoBoundRun:
        """Lend the arrays to a request of its own; see `Session.bind`. Runs once, to fail here."""
        compiled = self.live
        feeds = checked_feeds(RUNTIME, self._model, inputs)
        check_sizes_fit(RUNTIME, self._model, feeds)
        tensors = {port: _shared_tensor(array, element) for port, element, array in self._placed(feeds)}
        request = compiled.create_infer_request()
        try:
            for port, tensor in tensors.items():
                request.set_input_tensor(port, tensor)
        except _FAILURES as error:
            raise _failure(error) from error
        bound = OpenVinoBoundRun(request, self._model.output_names, list(tensors.values()))
        bound()
        return bound

    def ran(self) -> RanReport:
        """Say what really runs; see `Session.ran`. Read at the first call, then kept."""
        return self._ran

    @cached_property
    def _ran(self) -> RanReport:
        return read_ran(self._model, self.live, threads=self._options.threads)

    def _placed(self, feeds: Mapping[str, Array]) -> Iterator[tuple[int, Any, Array]]:
        """Port, OpenVINO's element type and array of each input that some node reads; the importer drops others."""
        for name, array in feeds.items():
            port = self._ports.get(name)
            if port is not None:
                yield port, self.live.inputs[port].get_element_type(), array
            elif name in self._model.ir.graph.initializers:
                raise SessionError(f"{RUNTIME} holds input '{name}' at its default and takes no array for it.")


def clean_message(message: str) -> str:
    r"""The sentence in an OpenVINO error text: no places in its source or of the model, one line, no final stop.

    Example:
        >>> clean_message("Exception from src/inference/src/cpp/core.cpp:105:\nUnable to read the model.\n\n")
        'Unable to read the model'
    """
    lines = [line.strip() for line in message.splitlines()]
    sentences = [
        _UNREAD.sub("Unable to read the model.", line)
        for line in lines
        if line and not _NOISE.match(line) and not _CHECK.match(line)
    ]
    conditions = [found["condition"] for line in lines if (found := _CHECK.match(line))]
    return " ".join(sentences or [f"not true: {condition}" for condition in conditions[-1:]]).rstrip(".")


def _failure(error: Exception, *, what: str = "failed") -> SessionError:
    return SessionError(f"{RUNTIME} {what}: {clean_message(str(error)) or type(error).__name__}.")


def configuration(options: LoadOptions) -> dict[str, Any]:
    """OpenVINO's properties.

    Left alone, OpenVINO computes float32 models in bfloat16 on CPUs that have
    it, and answers the hint f16 with bfloat16 too where there is no float16
    (2026.4.1): f32 is the one hint that is never weaker than the model's type.
    """
    configuration: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": options.threads,
    }
    if options.purpose is Purpose.AGREEMENT:
        configuration |= {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    if not options.optimise:
        # Its own compiler of fused loops; the other passes cannot be turned off from outside.
        configuration["SNIPPETS_MODE"] = "DISABLE"
    return configuration


def _input_ports(model: OnnxModel, compiled: "CompiledModel") -> dict[str, int]:
    """Ports by input name; by position where the importer lost a name and every input is there.

    Raises:
        SessionError: If a port belongs to no input.
    """
    names = model.input_names
    ports = {name: index for index, port in enumerate(compiled.inputs) for name in port.get_names() if name in names}
    lost = [index for index in range(len(compiled.inputs)) if index not in ports.values()]
    if lost and len(compiled.inputs) == len(names):
        return {name: index for index, name in enumerate(names)}
    if lost:
        raise SessionError(f"{RUNTIME} cannot load the model: its importer lost the names of {len(lost)} inputs.")
    return ports


def _shared_tensor(array: Array, element: Any) -> "Tensor":
    """A tensor over the array's own memory, or over a copy where that is not in C order."""
    ov = import_openvino()
    laid_out = np.ascontiguousarray(array)
    # OpenVINO's Python knows no bfloat16 of numpy: the bits pass as integers under OpenVINO's own type.
    bits = laid_out.view(np.uint16) if element == ov.Type.bf16 else laid_out
    return ov.Tensor(bits, ov.Shape(array.shape), element)


def _read_outputs(request: "InferRequest", names: tuple[str, ...]) -> dict[str, Array]:
    return {name: _copied(request.get_output_tensor(index)) for index, name in enumerate(names)}


def _copied(tensor: "Tensor") -> Array:
    import ml_dtypes

    data: Array = tensor.data
    if tensor.get_element_type() == import_openvino().Type.bf16:
        data = data.view(ml_dtypes.bfloat16)
    return np.array(data)
