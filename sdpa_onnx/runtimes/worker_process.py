"""Start one worker process, and say in one sentence how it ended. Sends no request.

Another environment must not find anything of ours: a package that is missing there would be taken from here, and the
version that is reported would be wrong. So the folder `worker` is loaded by its place, and no path is passed on.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from sdpa_onnx.runtimes.worker.onnxruntime_import import NO_TELEMETRY
from sdpa_onnx.runtimes.worker.orphan import OTHER_PARENT

__all__ = [
    "NOT_THE_RUNTIME",
    "WorkerProcess",
    "WorkerService",
    "cannot_import",
    "ending",
    "last_line",
    "oom_kills",
    "start_worker",
]

# Read before anything is imported there; they cannot be changed later.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# By these our environment would leak into another one.
_OURS_ONLY = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__")

_FOLDER = Path(__file__).parent / "worker"
_PACKAGE = "sdpa_onnx_worker"
_OLDEST = (3, 9)

# What a runtime prints is kept for its last line only, which lies in the tail.
_MOST_PRINTED_BYTES = 2**20
_TAIL_BYTES = 4096

# Every Python since 2.6 reads this text, so that an old one can be reported. The empty path is the folder that the
# process stands in: a file named numpy.py there is not ours.
_BOOTSTRAP = """\
import sys
sys.path[:] = [path for path in sys.path if path]
if sys.version_info < {oldest!r}:
    sys.stderr.write("{old}%d.%d\\n" % sys.version_info[:2])
    sys.exit(1)
sys.path += [path for path in {paths!r} if path not in sys.path]
import importlib, importlib.util
spec = importlib.util.spec_from_file_location({package!r}, {file!r}, submodule_search_locations=[{folder!r}])
sys.modules[{package!r}] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    main = importlib.import_module({package!r} + ".main").main
except Exception as error:
    sys.stderr.write("{cannot}%s: %s\\n" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0]))
    sys.exit(1)
main({service!r}, {descriptor!r}, {parent!r}, {name!r})
"""
_OLD = "sdpa-onnx: Python "
_CANNOT = "sdpa-onnx: cannot import: "
_LACKS = re.compile(r"ModuleNotFoundError: No module named '(?P<module>\w+)'")
# So much of a line of the text above shows that a program only quotes it.
_QUOTED_CHARACTERS = 12

_INSTALL = "Install what is missing there, or name another Python."
_ANOTHER = "Name another Python, such as env/bin/python."
NOT_THE_RUNTIME = "This is no fault of the runtime; see whether `sdpa-onnx runtimes` works."


class WorkerService(StrEnum):
    """What a worker serves: the module in `worker` that it opens.

    ON_ENGINE times arms on an engine and needs numpy and its package only, so it works in any environment and starts
    quickly. The others need ours: ON_SDPA_ONNX times arms on any registered runtime, SESSIONS loads and runs models in
    one, FUNCTION calls a function of ours.
    """

    ON_ENGINE = "on_engine"
    ON_SDPA_ONNX = "on_sdpa_onnx"
    SESSIONS = "sessions"
    FUNCTION = "function"


@dataclass(slots=True)
class WorkerProcess:
    """A process, the pipe to it, and the file that holds what it printed last."""

    process: "subprocess.Popen[bytes]"
    command: list[str]
    pipe: "Connection[Any, Any]"
    errors: IO[bytes]
    oom_kills_before: int

    def trim(self) -> None:
        """Drop what was printed, if it is much."""
        if os.fstat(self.errors.fileno()).st_size > _MOST_PRINTED_BYTES:
            os.ftruncate(self.errors.fileno(), 0)

    def end(self, *, wait_seconds: float = 0.0) -> int:
        """Close the pipe and end the process, if it did not end by itself in that time; its exit code."""
        self.pipe.close()
        try:
            return self.process.wait(timeout=wait_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def not_started(self, status: int, python: Path | None, who: str) -> tuple[str, str]:
        """The sentence on a process that ended before it was ready, and a hint.

        Args:
            status: How it ended.
            python: Interpreter of another environment; None = ours.
            who: For whom it was started.
        """
        line, interpreter = last_line(self.errors), _who(python)
        if line.startswith(_OLD):
            return f"A worker needs Python 3.9 or newer, and {interpreter} is {line.removeprefix(_OLD)}.", _ANOTHER
        if line == OTHER_PARENT:
            sentence = f"{interpreter} is not the interpreter itself: it starts Python as one more process."
            return sentence, "Name the interpreter, or start it with exec."
        if line.startswith(_CANNOT):
            return cannot_import(python, line.removeprefix(_CANNOT))
        if python is None:
            return f"The process for {who} did not start: it ended with {self._ended(status)}.", NOT_THE_RUNTIME
        ended = ending(status) if self._is_quoted(line) else self._ended(status)
        return f"{interpreter} did not start as a worker: its process ended with {ended}.", _ANOTHER

    def how_ended(self, status: int) -> str:
        """A predicate without a final stop, such as "crashed: its process ended with SIGSEGV"."""
        if status == -signal.SIGKILL:
            if oom_kills() > self.oom_kills_before:
                return "was killed by the system for memory (SIGKILL)"
            return "was killed (SIGKILL) from outside, perhaps for memory"
        if "bad_alloc" in (line := last_line(self.errors)):
            return f"ran out of memory: {line}"
        return f"crashed: its process ended with {self._ended(status)}"

    def _is_quoted(self, line: str) -> bool:
        """Whether a program that is no Python says our own text back."""
        *_, code = self.command
        starts = (part.strip()[:_QUOTED_CHARACTERS] for part in code.splitlines())
        return any(start in line for start in starts if len(start) == _QUOTED_CHARACTERS)

    def _ended(self, status: int) -> str:
        line = last_line(self.errors)
        return f"{ending(status)}{': ' + line if line else ''}"


def start_worker(service: WorkerService, name: str, *, python: Path | None, threads: int | None) -> WorkerProcess:
    """Start a process that imports what a service needs and then waits.

    Args:
        service: What it serves.
        name: What the service is opened with: our name of a runtime whose package is imported too ("" where the service
            itself says which), or "module:function".
        python: Interpreter of another environment; None = ours.
        threads: Pinned by environment variables; None = as they are.

    Raises:
        OSError: If that interpreter cannot be started.
    """
    ours, theirs = Pipe()
    # Absolute, since a name without a folder would be looked up in PATH; not resolved, since links are environments.
    interpreter = sys.executable if python is None else str(python.absolute())
    command = [interpreter, "-c", _bootstrap(service, name, theirs.fileno(), python)]
    errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - it ends with the process; appended, so that it can be trimmed
    kills = oom_kills()
    pinned = {} if threads is None else dict.fromkeys(_THREAD_VARIABLES, str(threads))
    try:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=_environment_of(python) | pinned,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    except OSError:
        ours.close()
        errors.close()
        raise
    finally:
        theirs.close()
    return WorkerProcess(process, command, ours, errors, kills)


def cannot_import(python: Path | None, text: str) -> tuple[str, str]:
    """The sentence on what cannot be imported, and a hint.

    Args:
        python: Interpreter of another environment; None = ours.
        text: Type and first line of the exception, as a traceback ends with.
    """
    if lacks := _LACKS.fullmatch(text):
        return f"{_who(python)} has no {lacks['module']}.", _INSTALL
    return f"{_who(python)} cannot import what it needs: {' '.join(text.split()).rstrip('.:')}.", _INSTALL


def _who(python: Path | None) -> str:
    return str(python or "The Python that runs this")


def _environment_of(python: Path | None) -> dict[str, str]:
    """Variables: without telemetry, and for another environment without what would lend it ours."""
    kept = {name: value for name, value in os.environ.items() if python is None or name not in _OURS_ONLY}
    return dict([NO_TELEMETRY]) | kept


def oom_kills() -> int:
    """Processes of our control group, or else of this system, that were ended for memory so far; 0 if unknown."""
    files = [path for path in _group_files() if path.exists()]
    return sum(_counter(path) for path in files or [Path("/proc/vmstat")])


def _bootstrap(service: WorkerService, name: str, descriptor: int, python: Path | None) -> str:
    paths = [] if python is not None else [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the current folder
    return _BOOTSTRAP.format(
        oldest=_OLDEST,
        old=_OLD,
        cannot=_CANNOT,
        paths=paths,
        package=_PACKAGE,
        file=str(_FOLDER / "__init__.py"),
        folder=str(_FOLDER),
        service=str(service),
        descriptor=descriptor,
        parent=os.getpid(),
        name=name,
    )


def _group_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    groups = [line.split(":", 2)[2].lstrip("/") for line in lines if line.startswith("0::")]
    return [Path("/sys/fs/cgroup") / group / "memory.events" for group in groups]


def _counter(path: Path) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def ending(status: int) -> str:
    """How a process ended: the name of the signal, or its exit code."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def last_line(errors: IO[bytes]) -> str:
    """What a process printed last on its standard error, without a final stop, or ""."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return " ".join(lines[-1].split()).rstrip(".") if lines else ""
