"""Help, version and their imports."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from sdpa_onnx import __version__
from sdpa_onnx.cli.help.examples import EXAMPLES
from sdpa_onnx.cli.main import app
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
    assert shell("-V") == ended
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"sdpa-onnx {__version__}\n", "")


def test_export_says_that_it_runs_code(shell: Shell) -> None:
    """The help of `export` says that the code of a module runs."""
    assert "Exporting a module runs its code." in " ".join(shell("export", "--help").stdout.split())


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


@pytest.mark.parametrize("example", [one for examples in EXAMPLES.values() for one in examples])
def test_examples_parse(example: str) -> None:
    """Each example of the help is a command line that the parser accepts."""
    name, *arguments = shlex.split(example)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # a group has commands
    with command.make_context(name, arguments):
        pass


def test_every_command_with_options_has_examples() -> None:
    """`runtimes` has nothing to show."""
    assert {*EXAMPLES, "runtimes"} == set(_COMMANDS)


@pytest.mark.parametrize("command", [name for name in _COMMANDS if name != "runtimes"])
def test_help_is_readable(shell: Shell, command: str) -> None:
    """Options are in groups, types are words, and lists are marked as repeatable."""
    text = shell(command, "--help").stdout
    assert "\nWhat it prints:\n" in text
    assert "\nExamples:\n  sdpa-onnx " in text
    assert "<" not in text.replace("<=", "")
    assert "list[" not in text
    assert all(option in text for option in ("-q, --quiet", "-v, --verbose", "--debug"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "x.onnx", "--foo"], "No such option: --foo. See sdpa-onnx verify --help."),
        (["convert"], "Missing argument 'F.onnx'. See sdpa-onnx convert --help."),
        (["verfy"], "No such command 'verfy'. Did you mean 'verify'? See sdpa-onnx --help."),
        (
            ["export", "sdpa", "-o", "x.onnx", "--mask", "bol"],
            (
                "Invalid value for '--mask': 'bol' is not one of 'none', 'bool', 'float', 'lengths'. "
                "Did you mean 'bool'? See sdpa-onnx export --help."
            ),
        ),
        (
            ["verify", "x.onnx", "--timeout", "0"],
            "Invalid value for '--timeout': it must be at least 0.1. See sdpa-onnx verify --help.",
        ),
        (
            ["verify", "x.onnx", "--seed", "one"],
            "Invalid value for '--seed': it must be a whole number. See sdpa-onnx verify --help.",
        ),
        (
            ["verify", "x.onnx", "--quiet", "--verbose"],
            "--quiet and --verbose exclude each other. Leave out one of them.",
        ),
        (
            ["verify", "x.onnx", "--runtime", "tensorrt"],
            "There is no runtime 'tensorrt'. `sdpa-onnx runtimes` lists them.",
        ),
    ],
    ids=["option", "argument", "command", "choice", "range", "number", "both", "runtime"],
)
def test_usage_errors(shell: Shell, arguments: list[str], message: str) -> None:
    """One sentence in our words, and the help of the command in question."""
    Path("x.onnx").write_bytes(Path("bare.onnx").read_bytes())
    assert shell.refusal(*arguments) == message
