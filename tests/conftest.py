"""What every test shares: one thread, reproducible examples, golden texts."""

# The pools read these once, when numpy and torch are first imported: before any other import here.
import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import msgspec
import pytest

from sdpa_onnx.core.records.record_base import BaseRecord

# No deadline: a shared machine stalls at any time. On CI the same examples every time, so that a red run can be
# repeated; at a desk new ones.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

_DIFF_LINES = 40

GoldenCheck = Callable[[str, str], None]


def check_golden(folder: Path, name: str, text: str) -> None:
    """Compare a text with a golden file; on a difference write `NAME.got` beside it and fail.

    To accept the new text, look at the difference and rename the `.got` file.

    Args:
        folder: Where the golden files are.
        name: File name of the expected text.
        text: What was produced.
    """
    golden_path, got_path = folder / name, folder / f"{name}.got"
    expected = golden_path.read_text(encoding="utf-8") if golden_path.exists() else None
    if text == expected:
        got_path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    got_path.write_text(text, encoding="utf-8")
    if expected is None:
        pytest.fail(f"There is no golden file {golden_path}. Read {got_path.name} and rename it.", pytrace=False)
    diff = list(
        difflib.unified_diff(expected.splitlines(), text.splitlines(), golden_path.name, got_path.name, lineterm="")
    )
    # Only line ends differ: say so instead of showing nothing.
    shown = diff[:_DIFF_LINES] or ["(the lines are equal; the line ends differ)"]
    more = [f"... {len(diff) - _DIFF_LINES} more lines"] if len(diff) > _DIFF_LINES else []
    pytest.fail("\n".join([f"{golden_path.name} differs; all of it is in {got_path}", *shown, *more]), pytrace=False)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Fields in which two records of one kind differ: their reprs show only the main figures."""
    if op != "==" or not isinstance(left, BaseRecord) or type(left) is not type(right):
        return None
    one, other = msgspec.structs.asdict(left), msgspec.structs.asdict(right)
    return [
        f"{left!r} == {right!r}",
        *(f"{name}: {one[name]!r} != {other[name]!r}" for name in one if one[name] != other[name]),
    ]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenCheck:
    """`golden(name, text)` compares with `golden/NAME` in the room of the test, such as tests/report/golden."""
    here = Path(__file__).parent
    folder = here / request.path.relative_to(here).parts[0] / "golden"

    def check(name: str, text: str) -> None:
        check_golden(folder, name, text)

    return check


@pytest.fixture(scope="session", autouse=True)
def _timings_of_this_run_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Timings beside the tests, such as those of another test run on this machine, add no warning here."""
    folder = tmp_path_factory.mktemp("timings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdpa_onnx.measure.timing_notice.notice_folder", lambda: folder)
        yield
