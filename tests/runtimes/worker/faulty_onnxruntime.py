# ruff: noqa: ANN001, ANN201, ANN202, ANN204, ANN205, ARG004, T201 - in place of an untyped package that prints
"""Stands in for onnxruntime in an environment of its own, and does there what a bad runtime does.

The session configuration entry "session.fault" says what, "session.when" whether at "load" or at a later "call".
"""

import ctypes
import os
import signal
import sys
import time

__version__ = "0.0.1"

_LIBC = ctypes.CDLL(None)


class GraphOptimizationLevel:
    ORT_ENABLE_ALL = 99


class SessionOptions:
    def __init__(self):
        self.entries = {}

    def add_session_config_entry(self, key, value):
        self.entries[key] = value


class RunOptions:
    def __init__(self):
        self.entries = {}

    def add_run_config_entry(self, key, value):
        self.entries[key] = value


class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(array, device, number):
        value = OrtValue()
        value.array = array
        return value

    def data_ptr(self):
        return self.array.ctypes.data

    def data_type(self):
        return "tensor(float)"

    def numpy(self):
        return self.array


class _Named:
    def __init__(self, name):
        self.name = name


class _Part:
    def __init__(self, provider):
        self.ep_name = provider

    def get_nodes(self):
        node = _Named("a node")
        node.op_type = "MatMul"
        return [node]


class _Binding:
    def __init__(self):
        self.inputs = {}

    def bind_input(self, name, device, number, element, shape, pointer):
        pass

    def bind_output(self, name, device):
        pass

    def bind_ortvalue_output(self, name, value):
        pass

    def synchronize_outputs(self):
        pass

    def get_outputs(self):
        return []


class InferenceSession:
    def __init__(self, model, options, providers):
        self._options = options
        self._providers = [name for name, _ in providers]
        self.provider_options = dict(providers[0][1])
        self._calls = 0
        self.runs = []  # the run configuration entries of each
        if options.entries.get("session.fault") == "other provider":
            self._providers = ["CPUExecutionProvider"]
        if options.entries.get("session.fault") == "no capture" and self.provider_options["enable_cuda_graph"] == "1":
            raise RuntimeError("This session cannot use the graph capture feature as requested by the user.")
        if options.entries.get("session.when") == "load":
            fail(options.entries["session.fault"])

    def get_providers(self):
        return self._providers

    def disable_fallback(self):
        pass

    def get_inputs(self):
        return []

    def get_outputs(self):
        return []

    def io_binding(self):
        return _Binding()

    def get_provider_graph_assignment_info(self):
        return [_Part(self._options.entries.get("session.taken by", self._providers[0]))]

    def run_with_iobinding(self, binding, options=None):
        self._calls += 1
        self.runs.append(options.entries if options else {})
        if self._calls > 1 and "session.when" not in self._options.entries:
            fail(self._options.entries.get("session.fault"))


def fail(fault):
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(60.0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "abort":
        sys.stderr.write("first line\nterminate called after throwing an instance of 'std::bad_alloc'\n")
        sys.stderr.flush()
        os.abort()
    if fault == "exit":
        sys.stderr.write("ERROR: the licence\n  has run out.\n")
        sys.stderr.flush()
        os._exit(3)
    if fault == "memory":
        raise MemoryError("cannot allocate 8 GB")
    if fault == "bad_alloc":
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")
    if fault == "refuse":
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel for node with name 'scores'")
    if fault == "print":
        print("a line from Python", flush=True)
        _LIBC.puts(b"a line from C")
        _LIBC.fflush(None)
        os.write(1, b"bytes\n" * 1000)
        os.write(2, b"errors\n" * 1000)
    if fault == "flood":
        os.write(2, b"x" * 2_000_000)


def get_available_providers():
    return ["CPUExecutionProvider"]
