"""The boundary between a command and the shell: exit codes, one-line error messages, thread counts.

Exit codes: 0 success; 1 a disagreement or a failed cell; 2 misuse, bad input,
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

from sdpa_onnx.cli.detail import Detail, chosen_detail, requested_detail
from sdpa_onnx.cli.process.interruption import was_interrupted
from sdpa_onnx.errors import PlanError, SdpaOnnxError
from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.runtimes.import_failure import import_failure

__all__ = [
    "DISAGREES",
    "INTERRUPTED",
    "MISUSE",
    "OK",
    "drop_results",
    "escape_unencodable",
    "flush_results",
    "is_out_of_memory",
    "pin_threads",
    "print_message",
    "print_note",
    "replace_closed_streams",
    "results",
    "with_exit_codes",
]

OK, DISAGREES, MISUSE, INTERRUPTED = 0, 1, 2, 130

Parameters = ParamSpec("Parameters")

# The real stdout while `sys.stdout` is redirected to stderr; None = not redirected.
_RESULTS: ContextVar[TextIO | None] = ContextVar("_RESULTS", default=None)
# More threads than this are a typing error and exhaust the system.
_THREADS_PER_PROCESSOR = 4
_NO_MEMORY = ("can't allocate memory", "not enough memory", "array is too big", "Maximum allowed dimension")


def with_exit_codes(command: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn the exceptions of a command into a one-line message on stderr and an exit code.

    `--debug` prints the traceback.
    """

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        has_said_so = False
        try:
            with chosen_detail(options), _prints_to_stderr(as_json=bool(options.get("json"))):
                _require_finite(options)
                code = command(*arguments, **options)
                has_said_so = code == INTERRUPTED
                flush_results()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader closed the pipe (`| head`). This is no error, but nothing more can be printed.
            drop_results()
            code = OK
        except SystemExit:
            # Our commands return their exit code, so this is the user's module.
            code = _refused("The target's code called sys.exit. Remove the call.", is_traced=bool(options.get("debug")))
        except Exception as error:  # noqa: BLE001 - the outermost handler
            code = _refused(_error_message(error), is_traced=bool(options.get("debug")))
        if not has_said_so and (
            code == INTERRUPTED or was_interrupted()
        ):  # native code may have turned the interrupt into another error
            print_message("Interrupted.")
            code = INTERRUPTED
        raise SystemExit(code)

    return run


def _refused(text: str, *, is_traced: bool) -> int:
    """Print why the command failed, with the traceback of the exception being handled if requested; its exit code."""
    if is_traced and sys.stderr is not None:
        sys.stderr.write(escape_control(traceback.format_exc()))
    if not was_interrupted():
        print_message(text)
    return MISUSE


def print_message(text: str) -> None:
    """Print a message for the user on stderr, in one line."""
    if sys.stderr is not None:  # print(file=None) would write to stdout
        with contextlib.suppress(OSError):  # the terminal was closed
            print(f"sdpa-onnx: {escape_control(' '.join(text.split()))}", file=sys.stderr, flush=True)


def print_note(text: str) -> None:
    """Print a message that is no error, such as what was written; nothing with --quiet."""
    if requested_detail() is not Detail.QUIET:
        print_message(text)


def _require_finite(options: Mapping[str, object]) -> None:
    """Reject `inf` and `nan`, which pass the parser's range checks.

    Raises:
        PlanError: If an option has such a value.
    """
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise PlanError(f"--{name.replace('_', '-')} {value} is not a finite number.")


def results() -> TextIO | None:
    """Return the stream for results: the real stdout, even while prints are redirected; None if it is closed."""
    return _RESULTS.get() or sys.stdout


def flush_results() -> None:
    """Flush now, so that a closed pipe raises here and not at interpreter exit."""
    stream = results()
    if stream is not None:
        stream.flush()


def drop_results() -> None:
    """Send the remaining output to the null device after the reader closed the pipe."""
    stream = results()
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def replace_closed_streams() -> None:
    """Replace a closed stdout or stderr (`>&-`), which Python sets to None, by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until exit


def escape_unencodable() -> None:
    """Make stdout and stderr write an escape sequence for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _prints_to_stderr(*, as_json: bool) -> Iterator[None]:
    """With --json, redirect the prints of a user's module to stderr; results still go to stdout."""
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
    """Set the thread count of every math library. Call this before numpy is imported.

    Environment variables that are already set keep their values.

    Raises:
        PlanError: If there are too many threads for this machine.
    """
    most = _THREADS_PER_PROCESSOR * (os.cpu_count() or 1)
    if threads > most:
        raise PlanError(f"--threads {threads} is too many for this machine.", hint=f"Give at most {most}.")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def _error_message(error: Exception) -> str:
    match error:
        case SdpaOnnxError():
            return str(error)
        case ImportError():
            return import_failure(error)
        case OSError():
            where = f" {error.filename}" if error.filename else ""
            return f"Cannot read or write{where}: {error.strerror or error}."
        case _ if is_out_of_memory(error):
            return "Not enough memory. Use smaller sizes."
        case _:
            advice = "This is a bug in sdpa-onnx; run again with --debug and report it."
            return f"Unexpected {type(error).__name__}: {error}. {advice}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: torch raises RuntimeError for this, numpy ValueError and OverflowError."""
    if isinstance(error, MemoryError | OverflowError):
        return True
    return isinstance(error, RuntimeError | ValueError) and any(text in str(error) for text in _NO_MEMORY)
