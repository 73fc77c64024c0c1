"""What stands between a command and the shell: exit codes, one-line errors, pinned threads.

Exit codes: 0 all well; 1 a disagreement or a failed cell; 2 misuse, bad input,
missing package, unwritable folder; 130 Ctrl-C.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

from sdpa_onnx.errors import SdpaOnnxError

__all__ = ["DISAGREES", "INTERRUPTED", "MISUSE", "OK", "guarded", "pin_threads", "tell"]

OK, DISAGREES, MISUSE, INTERRUPTED = 0, 1, 2, 130

Parameters = ParamSpec("Parameters")


def guarded(command: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn what a command raises into one clear sentence on stderr and an exit code.

    `--debug` shows the traceback.
    """

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            code = command(*arguments, **options)
        except KeyboardInterrupt:
            tell("Interrupted.")
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader went away (`| head`); nothing is wrong, and nothing more can be printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = OK
        except Exception as error:  # noqa: BLE001 - the last line before the shell
            if options.get("debug"):
                traceback.print_exc()
            tell(_sentence(error))
            code = MISUSE
        raise SystemExit(code)

    return run


def tell(text: str) -> None:
    """Say something to the person, not to the pipe, in one line."""
    print(f"sdpa-onnx: {' '.join(text.split())}", file=sys.stderr, flush=True)


def pin_threads(threads: int) -> None:
    """Give every math library the same number of threads; call before numpy is imported.

    A variable that the user has set stays.
    """
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
        case MemoryError():
            return "There is not enough memory. Use smaller sizes."
        case _:
            fault = "This is a fault of sdpa-onnx; run again with --debug and report it."
            return f"Unexpected {type(error).__name__}: {error}. {fault}"
