"""Ctrl-C inside a command, raised where it is taken for another error or taken for none."""

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from sdpa_onnx.cli.error_boundary import with_exit_codes
from sdpa_onnx.cli.process import interruption
from tests.sweep.process import environment

_COMMAND = """
import signal, sys, time
from sdpa_onnx.cli import main as entry
from sdpa_onnx.cli.error_boundary import with_exit_codes

def interrupt():
    signal.raise_signal(signal.SIGINT)

@with_exit_codes
def command(*, debug=False):
{body}
    return 0

entry.app = lambda **_: command()
entry.main()
"""

CONVERTED = {
    "raised": "interrupt()",
    "into an ImportError": """
        try:
            interrupt()
        except BaseException as error:
            raise ImportError("initialization failed", name="onnxruntime") from error
        """,
    "into our own error": """
        from sdpa_onnx.errors import RuntimeUnavailableError
        try:
            interrupt()
        except BaseException:
            raise RuntimeUnavailableError("onnxruntime is missing") from None
        """,
    "into a SystemError": """
        try:
            interrupt()
        except BaseException as error:
            raise SystemError("returned a result with an exception set") from error
        """,
    "into an exit": """
        try:
            interrupt()
        except BaseException:
            sys.exit(3)
        """,
    "into success": """
        try:
            interrupt()
        except BaseException:
            pass
        """,
    "in a destructor": """
        class Late:
            def __del__(self):
                interrupt()
        late = Late()
        del late
        time.sleep(30)
        """,
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_interrupt_is_never_another_error(kind: str) -> None:
    """One message, exit code 130, no traceback: whatever the exception was turned into."""
    body = textwrap.indent(textwrap.dedent(CONVERTED[kind]), "    ")
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND.format(body=body)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sdpa-onnx: Interrupted.\n")


_LOADING = """
import importlib.machinery, signal, sys
from sdpa_onnx.cli.process.interruption import interruptible, was_interrupted

class Native(importlib.machinery.ExtensionFileLoader):
    def exec_module(self, module):
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            print("interrupted inside", flush=True)
        module.whole = True

with interruptible():
    loader = Native("native", "/nowhere/native.so")
    try:
        loader.exec_module(sys)
        print("whole", flush=True)
        import time; time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted after", was_interrupted())
"""


def test_extension_is_loaded_before_the_interrupt() -> None:
    """An extension module that initialises is not interrupted; what follows is."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADING], env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("whole\ninterrupted after True\n", "")


def test_nothing_is_interrupted_without_a_signal() -> None:
    """Outside of a command, and in one that no signal reached, nothing was interrupted."""
    assert not interruption.was_interrupted()
    with interruption.interruptible():
        assert not interruption.was_interrupted()


def _raising(error: ImportError) -> Callable[[], None]:
    @with_exit_codes
    def command() -> int:
        raise error

    return command


BROKEN = {
    "a part of it": (
        ModuleNotFoundError("No module named 'numpy._gone'", name="numpy._gone"),
        (
            "The package 'numpy' is installed and cannot be imported: No module named 'numpy._gone'. Install it again: "
            "pip install --force-reinstall numpy."
        ),
    ),
    "a library that does not load": (
        ImportError("libonnx.so: cannot open shared object file", name="onnx.onnx_cpp2py_export"),
        (
            "The package 'onnx' is installed and cannot be imported: libonnx.so: cannot open shared object file. "
            "Install it again: pip install --force-reinstall onnx."
        ),
    ),
    "a name that is gone": (
        ImportError("cannot import name 'gone' from 'numpy'", name="numpy"),
        (
            "The package 'numpy' is installed and cannot be imported: cannot import name 'gone' from 'numpy'. Install "
            "it again: pip install --force-reinstall numpy."
        ),
    ),
    "without a name": (
        ImportError("initialization failed"),
        "An installed package cannot be imported: initialization failed. Install it again.",
    ),
    "several lines": (
        ImportError("first\n\nsecond.", name="numpy"),
        (
            "The package 'numpy' is installed and cannot be imported: first second. Install it again: "
            "pip install --force-reinstall numpy."
        ),
    ),
    "missing": (
        ModuleNotFoundError("No module named 'not_there'", name="not_there"),
        "The package 'not_there' is missing. Install it: pip install not_there.",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_install_is_not_missing(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A package that is there and cannot be imported is broken; one that is not there is missing."""
    error, sentence = BROKEN[kind]
    with pytest.raises(SystemExit) as ended:
        _raising(error)()
    assert (ended.value.code, capsys.readouterr().err) == (2, f"sdpa-onnx: {sentence}\n")
