"""Asks an engine one thing in this process; the answer is the last line: python -m ... ENTRY PROBE ARGUMENTS."""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tests.runtimes.engines.jobs import Engine, Sizes, drawn, engine_of, opened, plain_model, result_of

_TASKS = Path("/proc/self/task")
# Modules that send, and what starts processes or connects, as Python's audit events name it.
_SENDERS = (
    "MNN.tools",
    "aliyun",
    "http.client",
    "requests",
    "urllib.request",
    "urllib3",
    "openvino_telemetry",
    "webbrowser",
)
_EVENTS = ("os.exec", "os.posix_spawn", "os.system", "socket.connect", "subprocess.Popen", "urllib.Request")


def runs(engine: Engine, *cases: Sizes) -> list[dict[str, Any]]:
    """The result at each of these sizes, or the reason of a refusal; a new model each time."""
    return [_run(engine, sizes) for sizes in cases]


def _run(engine: Engine, sizes: Sizes) -> dict[str, Any]:
    result, refused = attempt(engine, lambda: result_of(opened(engine, plain_model()), drawn(sizes)))
    if result is None:
        return {"refused": refused}
    return {"shape": result.shape, "type": result.dtype.name, "values": result.ravel().tolist()}


def threads(engine: Engine, count: int) -> dict[str, Any]:
    """What the engine reports of its threads, and how many more this process has when it has run."""
    before = len(list(_TASKS.iterdir()))
    loaded = opened(engine, plain_model(), threads=count)
    for _ in range(2):
        result_of(loaded, drawn((2, 96, 96)))
    return {"reported": ran_of(loaded).get("threads"), "new": len(list(_TASKS.iterdir())) - before}


def sent(engine: Engine) -> dict[str, Any]:
    """Modules that send, and commands started or connections made, while a model is loaded and run."""
    before, events = set(sys.modules), []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            started = arguments[1] if event == "subprocess.Popen" else arguments
            events.append([event, *(str(part) for part in started[:3])])

    sys.addaudithook(hear)
    result_of(opened(engine, plain_model()), drawn((2, 5, 7)))
    loaded = [name for name in sys.modules if name not in before and name.startswith(_SENDERS)]
    return {"modules": loaded, "events": events}


def printed(engine: Engine) -> str:
    """What reaches stdout, whoever writes it, while a model is loaded, run, reported, refused and closed."""
    with tempfile.TemporaryFile() as caught:
        kept = os.dup(1)
        os.dup2(caught.fileno(), 1)
        try:
            loaded = opened(engine, plain_model())
            result_of(loaded, drawn((2, 5, 7)))
            ran_of(loaded)
            attempt(engine, lambda: result_of(loaded, drawn((2, 5, 7)) | {"V": drawn((2, 5, 3))["V"]}))
            loaded.close()
            attempt(engine, lambda: opened(engine, plain_model(), model=b"this is no model"))
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
        caught.seek(0)
        return caught.read().decode(errors="replace")


def ran_of(loaded: Any) -> dict[str, Any]:
    """What the engine reports of what ran, which it may leave out."""
    ran = getattr(loaded, "ran", None)
    return ran(".", with_graph=False) if ran is not None else {}


def attempt(engine: Engine, call: Callable[[], NDArray[Any]]) -> tuple[NDArray[Any] | None, str]:
    """The result of a call, or None and the reason that a user reads."""
    try:
        return call(), ""
    except Exception as error:  # noqa: BLE001 - a runtime raises what it likes
        return None, _explained(engine, error)


def _explained(engine: Engine, error: Exception) -> str:
    explain = getattr(engine, "explain", None)
    return str(error) if explain is None or type(error).__name__ == "RefusalError" else str(explain(str(error)))


def main() -> None:
    entry, probe, arguments = sys.argv[1:]
    answer = globals()[probe](engine_of(entry), *json.loads(arguments))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
