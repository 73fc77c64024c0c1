"""What stands between a command and the shell: exit codes, one-line errors, pinned threads.

Exit codes: 0 all well; 1 a disagreement or a failed cell; 2 misuse, bad input,
missing package, unwritable folder; 130 Ctrl-C.
"""

import contextlib
import functools
import io
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TextIO

from sdpa_onnx.errors import PlanError, SdpaOnnxError

__all__ = [
    "DISAGREES",
    "INTERRUPTED",
    "MISUSE",
    "OK",
    "drop_results",
    "fill_closed_streams",
    "flush_results",
    "guarded",
    "pin_threads",
    "replace_unsayable",
    "results",
    "tell",
]

OK, DISAGREES, MISUSE, INTERRUPTED = 0, 1, 2, 130

Parameters = ParamSpec("Parameters")

# Where results go while `sys.stdout` is lent to what others print; None = it is not lent.
_RESULTS: ContextVar[TextIO | None] = ContextVar("_RESULTS", default=None)
# More threads than this are a slip of the finger, and exhaust the system.
_THREADS_PER_PROCESSOR = 4
_NO_MEMORY = ("can't allocate memory", "not enough memory", "array is too big", "Maximum allowed dimension")


def guarded(command: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn what a command raises into one clear sentence on stderr and an exit code.

    `--debug` shows the traceback.
    """

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            with _prints_apart(as_json=bool(options.get("json"))):
                _require_finite(options)
                code = command(*arguments, **options)
                flush_results()
        except KeyboardInterrupt:
            tell("Interrupted.")
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader went away (`| head`); nothing is wrong, and nothing more can be printed.
            drop_results()
            code = OK
        except SystemExit:
            # No command of ours leaves in this way.
            if options.get("debug"):
                traceback.print_exc()
            tell("The code of the target called sys.exit.")
            code = MISUSE
        except Exception as error:  # noqa: BLE001 - the last line before the shell
            if options.get("debug"):
                traceback.print_exc()
            tell(_sentence(error))
            code = MISUSE
        raise SystemExit(code)

    return run


def tell(text: str) -> None:
    """Say something to the person, not to the pipe, in one line."""
    if sys.stderr is not None:  # print(file=None) would write to stdout
        with contextlib.suppress(OSError):  # a terminal that was closed
            print(f"sdpa-onnx: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _require_finite(options: Mapping[str, object]) -> None:
    """Refuse `inf` and `nan`, which the parser takes for numbers within any limits.

    Raises:
        PlanError: If an option is one of them.
    """
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise PlanError(f"--{name.replace('_', '-')} {value} is no finite number.")


def results() -> TextIO | None:
    """Where results are written: stdout, also while others' prints are led to stderr; None if it is closed."""
    return _RESULTS.get() or sys.stdout


def flush_results() -> None:
    """Find out here, not at the interpreter's end, that the reader has gone."""
    stream = results()
    if stream is not None:
        stream.flush()


def drop_results() -> None:
    """Lead what is still to be written nowhere, once the reader has gone."""
    stream = results()
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fill_closed_streams() -> None:
    """Put nothing in place of a closed stdout or stderr (`>&-`), which Python gives as None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def replace_unsayable() -> None:
    """Let stdout and stderr write an escape for what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _prints_apart(*, as_json: bool) -> Iterator[None]:
    """With --json, lead what a user's module prints to stderr; results still go to stdout."""
    if not as_json:
        yield
        return
    token = _RESULTS.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.reset(token)


def pin_threads(threads: int) -> None:
    """Give every math library the same number of threads; call before numpy is imported.

    A variable that the user has set stays.

    Raises:
        PlanError: If so many threads would only be in each other's way.
    """
    most = _THREADS_PER_PROCESSOR * (os.cpu_count() or 1)
    if threads > most:
        raise PlanError(f"--threads {threads} is too many for this machine.", hint=f"Give at most {most}.")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def _sentence(error: Exception) -> str:
    match error:
        case SdpaOnnxError():
            return str(error)
        case ModuleNotFoundError():
            return f"The package '{error.name}' is missing. Install it: pip install {error.name}."
        case OSError():
            where = f" {error.filename}" if error.filename else ""
            return f"Cannot read or write{where}: {error.strerror or error}."
        case _ if _is_memory(error):
            return "There is not enough memory. Use smaller sizes."
        case _:
            fault = "This is a fault of sdpa-onnx; run again with --debug and report it."
            return f"Unexpected {type(error).__name__}: {error}. {fault}"


def _is_memory(error: Exception) -> bool:
    """Whether sizes were too large: torch says so by RuntimeError, numpy by ValueError and OverflowError."""
    if isinstance(error, MemoryError | OverflowError):
        return True
    return isinstance(error, RuntimeError | ValueError) and any(words in str(error) for words in _NO_MEMORY)
