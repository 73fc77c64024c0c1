"""Help, version and their imports."""

import subprocess
import sys

import pytest

from sdpa_onnx import __version__
from tests.cli.invoke import Shell

_COMMANDS = (
    "run",
    "export",
    "inspect",
    "convert",
    "verify",
    "bench",
    "compare",
    "saturation",
    "conformance",
    "fuzz",
    "reduce",
    "report",
    "runtimes",
)
_HEAVY = ("altair", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "rich", "scipy", "torch")
_HELP_THEN_LIST = """
import sys
from sdpa_onnx.cli.main import main
sys.argv = ["sdpa-onnx", *{arguments!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), *((name,) for name in _COMMANDS)], ids=" ".join)
def test_help(shell: Shell, command: tuple[str, ...], flag: str) -> None:
    """Every command prints its help and exits with 0."""
    ended = shell(*command, flag)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(" ".join(["Usage: sdpa-onnx", *command]))


def test_help_lists_every_command(shell: Shell) -> None:
    """The help lists the commands in order."""
    text = shell("--help").stdout
    listed = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.strip()]
    assert [name for name in listed if name in _COMMANDS] == list(_COMMANDS)


def test_no_command_prints_the_help(shell: Shell) -> None:
    """`sdpa-onnx` without a command prints the help."""
    ended = shell()
    assert "Usage: sdpa-onnx" in ended.stdout + ended.stderr
    assert ended.code in (0, 2)


def test_version(shell: Shell) -> None:
    """--version prints one line."""
    ended = shell("--version")
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"sdpa-onnx {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["export", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Help and version load none of the large libraries."""
    done = subprocess.run(
        [sys.executable, "-c", _HELP_THEN_LIST.format(arguments=arguments, heavy=_HEAVY)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    assert done.stderr == "\n"


def test_a_heavy_import_would_be_seen() -> None:
    """The test above detects a heavy import."""
    program = "import numpy\n" + _HELP_THEN_LIST.format(arguments=["--help"], heavy=_HEAVY)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "numpy\n"
