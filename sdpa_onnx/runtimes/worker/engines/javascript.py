"""ONNX Runtime for JavaScript, in a Node process of its own: the native package, and the one in WebAssembly.

Node's process runs `javascript_worker.mjs` and is spoken with over pipes; it ends with this process. A visit is timed
there, so that no pipe is part of a call.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import ort_errors
from ..arrays import BFLOAT16, ONNX_TYPES, Bits
from ..model_file import data_files, model_file
from ..onnxruntime_import import NO_TELEMETRY
from ..pipe import RefusalError

__all__ = ["OrtNode", "OrtWeb"]

# A folder node_modules, or the one that it lies in.
FOLDER_VARIABLE = "SDPA_ONNX_NODE_MODULES"
_WORKER = Path(__file__).with_name("javascript_worker.mjs")
_CPU = "CPUExecutionProvider"
# The package that can write the graph after optimisation, and its option for it.
_CAN_WRITE, _WRITES = "onnxruntime-node", "optimizedModelFilePath"
# What ONNX Runtime calls the types in JavaScript, which are numpy's words too; there is no bfloat16.
_NUMBERS = {name: number for name, number in ONNX_TYPES.items() if number != BFLOAT16}
_TYPES = {number: name for name, number in _NUMBERS.items()}
# Of a crash: frames, rules, and the version of Node.
_NO_REASON = re.compile(r"\s*(?:\d+: |at |-|\^|Node\.js v|$)")
_REASON = re.compile(r"(?:FATAL ERROR|\w*Error): ")
# From the end of its pipe to the end of the process.
_ENDING_SECONDS = 10


class OrtNode:
    """Opens models in onnxruntime-node: ONNX Runtime's own CPU provider, called from JavaScript."""

    name = "ort-node"
    install = "npm install onnxruntime-node --onnxruntime-node-install=skip"
    measures_time = True
    package = "onnxruntime-node"
    provider = "cpu"

    def version(self) -> str:
        """Such as "onnxruntime-node 1.30.0", read from its folder."""
        text = (_node_modules(self.package) / self.package / "package.json").read_text(encoding="utf-8")
        return f"{self.package} {json.loads(text)['version']}"

    def unavailable(self) -> str | None:
        """Whether Node is there."""
        return None if shutil.which("node") else "there is no program node: install Node 20 or newer (nodejs.org)"

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """Options of the session, by ONNX Runtime's names in JavaScript."""
        return {
            "executionProviders": [self.provider],
            "intraOpNumThreads": threads,
            "interOpNumThreads": 1,
            "executionMode": "sequential",
            "graphOptimizationLevel": "all" if optimise else "disabled",
            "logSeverityLevel": 4,  # what fails is raised
        }

    def refuses(self, nodes: list[dict[str, Any]]) -> str | None:
        """JavaScript has no array of bfloat16, and ONNX Runtime no type for one there."""
        return "takes no bfloat16" if any("bfloat16" in node["types"] for node in nodes) else None

    def explain(self, text: str) -> str:
        """The first line, without codes, paths and places in sources."""
        return ort_errors.clean_message((text.strip().splitlines() or [""])[0])

    def failing_node(self, text: str) -> str | None:
        """See `ort_errors.failing_node`."""
        return ort_errors.failing_node(text)

    def open(self, job: dict[str, Any]) -> _Opened:
        """Start Node and create the session there."""
        if reason := self.unavailable():
            raise RefusalError(f"cannot start: {reason}")
        child = _node(_node_modules(self.package), self.package, job["threads"])
        try:
            return _Opened(child, job)
        except BaseException:
            child.close()
            raise


class OrtWeb(OrtNode):
    """Opens models in onnxruntime-web: ONNX Runtime compiled to WebAssembly, run by Node."""

    name = "ort-web"
    install = "npm install onnxruntime-web"
    package = "onnxruntime-web"
    provider = "wasm"


class _Opened:
    device = "cpu"

    def __init__(self, child: _Node, job: dict[str, Any]) -> None:
        self._child = child
        self._outputs = job["outputs"]
        self._is_timed = job["purpose"] == "timing"
        self._count = 0
        self._optimised: str | None = None
        self._job = job
        options = dict(job["settings"])
        if job["report"] is not None and child.package == _CAN_WRITE:
            self._optimised = options[_WRITES] = str(Path(job["report"]) / "optimised.onnx")
        opened = self._ask_for_session("open", options)
        self._inputs, self._threads = set(opened["inputs"]), opened["threads"]
        self.process = child.process.pid

    def prepare(self, feeds: dict[str, Bits]) -> _Prepared:
        """Send inputs to Node, where they stay."""
        for name, (_, onnx_type) in feeds.items():
            if onnx_type not in _TYPES:
                raise RefusalError("takes no bfloat16" if onnx_type == BFLOAT16 else f"takes no ONNX type {onnx_type}")
            if name not in self._inputs:
                raise RefusalError(f"takes no other value for '{name}' than that of the file")
        self._count += 1
        return _Prepared(self._child, self._count, feeds, self._outputs)

    def visit(self, turns: Any, calls: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call so many times, timed in Node, whose processor time comes in microseconds; see `worker.visit.visit`."""
        counters, found = self._child.ask("visit", numbers=[call.number for call in turns.take(calls)])
        cpu = np.round(found["cpu"] * 1000).astype(np.int64)
        return counters, {"wall_ns": np.diff(found["wall"]), "cpu_ns": np.diff(cpu)}

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The threads that are there, and the optimised graph, where the package can write it."""
        optimised = self._optimised
        if with_graph and optimised is None and self._child.package == _CAN_WRITE:
            optimised = str(Path(folder).resolve() / "optimised.onnx")
            self._ask_for_session("write", {**self._job["settings"], _WRITES: optimised})
        threads = {} if self._threads is None else {"threads": self._threads}
        graph = {} if optimised is None else {"provider": _CPU, "optimised": optimised}
        return {"assigned": {_CPU: {}}, **graph, **threads}

    def _ask_for_session(self, request: str, options: dict[str, Any]) -> dict[str, Any]:
        with model_file(self._job) as path:
            files = data_files(Path(path).read_bytes()) if self._child.package == "onnxruntime-web" else []
            folder, threads = str(Path(path).parent), self._job["threads"]
            opened, _ = self._child.ask(
                request, path=path, files=files, folder=folder, threads=threads, options=options
            )
            return opened

    def close(self) -> None:
        """End Node where a call hangs, something failed or memory was measured; else keep it for the next model."""
        if self._is_timed:
            self._child.close()
        else:
            self._child.give_back()


class _Prepared:
    """Inputs that Node holds, by a number."""

    def __init__(self, child: _Node, number: int, feeds: dict[str, Bits], outputs: list[str]) -> None:
        self._child = child
        self._number = number
        self._outputs = outputs
        child.ask("feed", {name: (array, _TYPES[kind]) for name, (array, kind) in feeds.items()}, number=number)

    def first_run(self) -> Callable[[], object]:
        """Run once; give the call that runs again."""

        def call() -> None:
            self._child.ask("run", number=self._number)

        call.number = self._number  # type: ignore[attr-defined]  # a visit names the calls to Node
        call()
        return call

    def outputs(self) -> dict[str, Bits]:
        """What the last run gave, by output name."""
        header, found = self._child.ask("outputs", number=self._number)
        numbers = {each["name"]: _NUMBERS[each["type"]] for each in header["arrays"]}
        return {name: (found[name], numbers[name]) for name in self._outputs}


class _Node:
    """A Node process with one package, for one model at a time."""

    def __init__(self, folder: Path, package: str) -> None:
        self.package = package
        # What it was started for, and whether another model may follow: no request runs, and none failed.
        self.key: tuple[object, ...] = ()
        self._is_good = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the process
        replies, theirs = os.pipe()
        program = ["node", "--expose-gc", str(_WORKER), str(folder), package, str(theirs), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                program,
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs],
                env=dict([NO_TELEMETRY]) | dict(os.environ),
            )
        finally:
            os.close(theirs)
        self._replies = os.fdopen(replies, "rb")

    def ask(self, request: str, arrays: dict[str, Any] | None = None, **fields: Any) -> tuple[dict[str, Any], Any]:
        """Send a request; the header and the arrays of the reply."""
        was_good, self._is_good = self._is_good, False
        try:
            self._send(request, arrays or {}, fields)
            (size,) = np.frombuffer(self._read(4), "<u4")
            header = json.loads(self._read(int(size)))
            found = {each["name"]: self._array(each) for each in header["arrays"]}
        except (EOFError, OSError, ValueError):
            raise RuntimeError(self._ending()) from None
        except BaseException:
            self.close()  # the reply would be taken for that of the next request
            raise
        if "error" in header:
            raise RuntimeError(header["error"])
        self._is_good = was_good
        return header, found

    def give_back(self) -> None:
        """Free the model, and keep the process for another one."""
        if self._is_good:
            with contextlib.suppress(RuntimeError):
                self.ask("release")
                self._errors.seek(0)  # the process writes from here on too
                self._errors.truncate()
        if not self._is_good:
            self.close()
            return
        _FREE.append(self)
        while len(_FREE) > _MOST_FREE:
            _FREE.pop(0).close()

    def close(self) -> None:
        """End it now."""
        self._is_good = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self._replies, self._errors):
            with contextlib.suppress(OSError):  # what was not sent is lost
                pipe.close()  # type: ignore[union-attr]  # it has a pipe

    def _send(self, request: str, arrays: dict[str, Any], fields: dict[str, Any]) -> None:
        plain = {name: np.asarray(array, order="C") for name, (array, _) in arrays.items()}
        described = [
            {"name": name, "type": arrays[name][1], "shape": array.shape, "bytes": array.nbytes}
            for name, array in plain.items()
        ]
        header = json.dumps({"request": request, "arrays": described, **fields}).encode()
        requests: Any = self.process.stdin
        requests.write(len(header).to_bytes(4, "little") + header)
        for array in plain.values():
            requests.write(array.reshape(-1).view(np.uint8))
        requests.flush()

    def _read(self, size: int) -> bytes:
        found = self._replies.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def _array(self, described: dict[str, Any]) -> np.ndarray[Any, Any]:
        array = np.empty(described["shape"], described["type"])
        if self._replies.readinto(array.reshape(-1).view(np.uint8).data) < array.nbytes:
            raise EOFError
        return array

    def _ending(self) -> str:
        """How the process ended, and its last line that gives a reason."""
        try:
            status = self.process.wait(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # what came was no reply
            self.process.kill()
            status = self.process.wait()
        try:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
        except ValueError:
            return "Node was ended by close"
        said = [" ".join(line.split()) for line in lines if not _NO_REASON.match(line)]
        reason = next((line for line in said if _REASON.match(line)), said[-1] if said else "")
        ended = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        return f"Node ended with {ended}{': ' + reason if reason else ''}"


# Processes whose model was closed; a start takes longer than a small model.
_FREE: list[_Node] = []
_MOST_FREE = 2


def _node(folder: Path, package: str, threads: int) -> _Node:
    """A process that has no model: in WebAssembly the first one fixes the threads."""
    key = (os.getpid(), folder, package, threads)
    for kept in _FREE:
        if kept.key == key:
            _FREE.remove(kept)
            return kept
    started = _Node(folder, package)
    started.key = key
    return started


def _node_modules(package: str) -> Path:
    """The folder node_modules that has a package.

    Raises:
        ModuleNotFoundError: None has it.
    """
    for folder in _folders():
        if (folder / package / "package.json").is_file():
            return folder.resolve()
    raise ModuleNotFoundError(f"no folder node_modules has the package {package}", name=package)


def _folders() -> Iterator[Path]:
    """What the variable names; or the current folder and those above it, and where `npm install -g` installs."""
    if named := os.environ.get(FOLDER_VARIABLE):
        yield from (Path(named), Path(named) / "node_modules")
        return
    here = Path.cwd()
    yield from (folder / "node_modules" for folder in (here, *here.parents))
    node = shutil.which("node")
    prefixes = [os.environ.get("NPM_CONFIG_PREFIX"), node and Path(node).resolve().parents[1], "/usr/local"]
    yield from (Path(prefix) / "lib" / "node_modules" for prefix in prefixes if prefix)
