"""The pytest plugin: a fixture that asserts agreement and compares the time of callables and models in pairs.

It imports nothing heavy and does nothing until a test uses the fixture `sdpa`, which is described in `fixture`. If
pytest-benchmark is installed, comparisons are added to its table and its JSON.
"""

from pathlib import Path
from typing import Any

import pytest

from sdpa_onnx.pytest_plugin.collected import COLLECTED, SessionComparisons
from sdpa_onnx.pytest_plugin.fixture import Sdpa
from sdpa_onnx.pytest_plugin.result import PairedResult

__all__ = ["PairedResult", "Sdpa"]

_OPTION = "sdpa_json"


@pytest.fixture
def sdpa(request: pytest.FixtureRequest) -> Sdpa:
    """Assert that a model agrees with the oracle, and time callables or models interleaved."""
    return Sdpa(item=request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sdpa-onnx", "models and callables compared by sdpa_onnx")
    group.addoption(
        "--sdpa-json",
        dest=_OPTION,
        type=Path,
        metavar="FILE",
        help="write the comparisons of the fixture `sdpa` to FILE, in the format of pytest-benchmark",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check that the file can be written before any test runs."""
    config.stash[COLLECTED] = SessionComparisons()
    path = config.getoption(_OPTION)
    if path is None or hasattr(config, "workerinput"):
        return
    from sdpa_onnx.errors import FolderError
    from sdpa_onnx.graph.files.whole_file import check_target

    path = config.invocation_params.dir / path
    try:
        target = check_target(path)
    except FolderError as error:
        raise pytest.UsageError(f"--sdpa-json: {error}") from error
    if not target.parent.is_dir():
        raise pytest.UsageError(f"--sdpa-json: Cannot write {path}: its folder does not exist.")
    config.stash[COLLECTED].path = path


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, even if tests failed."""
    collected = session.config.stash[COLLECTED]
    if collected.path is None or session.config.getoption("collectonly"):
        return
    from sdpa_onnx.errors import FolderError
    from sdpa_onnx.pytest_plugin.json_file import write_json

    try:
        write_json(collected.path, collected.entries, root=session.config.rootpath)
        collected.file_message = f"{len(collected.results)} comparison(s) written to {collected.path}"
    except FolderError as error:
        collected.file_message = str(error)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    collected = config.stash[COLLECTED]
    if not collected.results and not collected.file_message:
        return
    terminalreporter.section("sdpa-onnx: paired comparisons")
    for result in collected.results:
        terminalreporter.write_line(f"{result.test}: {result.describe()}")
        for warning in result.warnings:
            terminalreporter.write_line(f"  {warning}")
    if collected.file_message:
        terminalreporter.write_line(collected.file_message)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the machine and the versions of our comparisons to the JSON of pytest-benchmark."""
    if config.stash[COLLECTED].entries:
        from sdpa_onnx.core.compare.benchmark_json import OURS
        from sdpa_onnx.pytest_plugin.json_file import our_run

        output_json[OURS] = our_run()
