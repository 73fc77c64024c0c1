"""Files made to harm: nothing outside the model's folder is opened, and no damage leads past our own errors."""

import builtins
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import fuzz_files
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import load_model
from tests.graph.models import product
from tests.graph.outside import referring

_SECRET = b"0123456789abcdef" * 256
# A 32 x 32 tensor of float32.
_BYTES = 4096
_MOST_MIB = 2048
_UNREADABLE = (
    "{path} is not a valid model: onnx_ir cannot read it (ValueError: {text}). "
    "It may be damaged, or use what this version cannot read."
)
_NO_NAME = "Cannot read {path}: a tensor names the file '', which is not a valid name."
_OUTSIDE = (
    "Cannot read {path}: a tensor names the file {place!r} outside of the model's folder. "
    "Put it beside the model; files elsewhere are never read."
)


def _write(folder: Path, **entries: object) -> Path:
    """A product with a weight in a file, in FOLDER/inner; FOLDER/secret is what must not be read."""
    (folder / "inner").mkdir()
    (folder / "secret").write_bytes(_SECRET)
    (folder / "inner" / "weights.bin").write_bytes(_SECRET)
    proto = product(width=32)
    proto.graph.initializer[0].CopyFrom(referring("w", (32, 32), **entries))
    path = folder / "inner" / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _error(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    return str(caught.value)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every path that was opened in this process since."""
    found: list[str] = []
    real_os, real = os.open, builtins.open

    def by_os(path: str | Path, *arguments: int, **options: int) -> int:
        found.append(os.fspath(path))
        return real_os(path, *arguments, **options)

    def by_name(path: str, *arguments: object, **options: object) -> object:
        found.append(str(path))
        return real(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", by_os)
    monkeypatch.setattr(builtins, "open", by_name)
    return found


@pytest.mark.parametrize("place", ["../secret", "x/../../secret", "{folder}/secret", "/etc/passwd", "..", "/"])
def test_places_outside(tmp_path: Path, opened: list[str], place: str) -> None:
    """Whether by dots or from the root, what lies outside is refused without being opened."""
    place = place.format(folder=tmp_path)
    path = _write(tmp_path, location=place)
    assert _error(path) == _OUTSIDE.format(path=path, place=place)
    assert [name for name in opened if not name.startswith(str(path.parent))] == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_that_lead_outside(tmp_path: Path, opened: list[str], kind: str) -> None:
    """A link in the model's folder is followed before it is judged."""
    place = "link" if kind == "file" else "link/secret"
    path = _write(tmp_path, location=place)
    (path.parent / "link").symlink_to(tmp_path / "secret" if kind == "file" else tmp_path)
    assert _error(path) == _OUTSIDE.format(path=path, place=place)
    assert [name for name in opened if "secret" in name] == []


def test_link_inside_is_followed(tmp_path: Path) -> None:
    """A link to another file of the same folder is as good as the file."""
    path = _write(tmp_path, location="link")
    (path.parent / "link").symlink_to("weights.bin")
    assert load_model(path).to_proto().graph.initializer[0].raw_data == _SECRET[:_BYTES]


def test_hard_link(tmp_path: Path) -> None:
    """A second name of a file elsewhere is refused, as onnx does."""
    path = _write(tmp_path, location="second")
    os.link(tmp_path / "secret", path.parent / "second")
    assert _error(path) == (
        f"Cannot read {path}: its tensor file {path.parent / 'second'} has a second name elsewhere (a hard link). "
        "Copy the file; one with two names may be another's."
    )


MAKERS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "device": lambda place: place.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_no_ordinary_file(tmp_path: Path, kind: str) -> None:
    """A folder is refused, and so is a pipe, without waiting for someone to write into it."""
    path = _write(tmp_path, location="data")
    MAKERS[kind](path.parent / "data")
    assert _error(path) == f"Cannot read {path}: its tensor file {path.parent / 'data'} is not a regular file."


def test_device(tmp_path: Path) -> None:
    """A link to a device leads outside."""
    path = _write(tmp_path, location="data")
    MAKERS["device"](path.parent / "data")
    assert _error(path) == _OUTSIDE.format(path=path, place="data")


def test_missing_and_circular_files(tmp_path: Path) -> None:
    """A file that is not there, and a link to itself."""
    path = _write(tmp_path, location="gone")
    assert _error(path) == f"Cannot read {path}: its tensor file {path.parent / 'gone'} is missing."
    (path.parent / "gone").symlink_to("gone")
    assert _error(path).startswith(f"Cannot read {path}: its tensor file {path.parent / 'gone'} ")


PLACES: dict[str, tuple[dict[str, object], str]] = {
    "no place": ({"offset": 0}, _NO_NAME),
    "empty place": ({"location": ""}, _NO_NAME),
    "zero byte": (
        {"location": "a\0b"},
        "Cannot read {path}: a tensor names the file 'a\\x00b', which is not a valid name.",
    ),
    "negative offset": (
        {"location": "weights.bin", "offset": -1},
        _UNREADABLE.format(path="{path}", text="External data offset must be non-negative, got -1 for tensor 'w'"),
    ),
    "huge offset": (
        {"location": "weights.bin", "offset": 10**30},
        (
            f"Cannot read {{path}}: tensor 'w' ends at byte {10**30 + 4096} of weights.bin, which has 4096. "
            "The file may be cut short."
        ),
    ),
    "no number": (
        {"location": "weights.bin", "length": "1e3"},
        _UNREADABLE.format(path="{path}", text="invalid literal for int() with base 10: '1e3'"),
    ),
    "offset beyond the end": (
        {"location": "weights.bin", "offset": 1},
        "Cannot read {path}: tensor 'w' ends at byte 4097 of weights.bin, which has 4096. The file may be cut short.",
    ),
    "another length": (
        {"location": "weights.bin", "length": 4000},
        (
            "Cannot read {path}: tensor 'w' needs 4096 bytes by its shape, but is given as 4000 bytes from "
            "byte 0 of weights.bin."
        ),
    ),
}


@pytest.mark.parametrize("kind", PLACES)
def test_places_that_cannot_be(tmp_path: Path, kind: str) -> None:
    """Names and numbers that no writer gives are one sentence each."""
    entries, text = PLACES[kind]
    path = _write(tmp_path, **entries)
    assert _error(path) == text.format(path=path)


def test_last_place_counts(tmp_path: Path) -> None:
    """Of two places the last is opened, and checked like any other."""
    path = _write(tmp_path, location="weights.bin")
    proto = product(width=32)
    proto.graph.initializer[0].CopyFrom(referring("w", (32, 32), location="weights.bin"))
    proto.graph.initializer[0].external_data.add(key="location", value="../secret")
    path.write_bytes(proto.SerializeToString())
    assert _error(path) == _OUTSIDE.format(path=path, place="../secret")


def test_huge_tensor_in_a_small_file(tmp_path: Path) -> None:
    """A shape of petabytes is compared with the file before anything is allocated."""
    path = _write(tmp_path, location="weights.bin")
    proto = product(width=32)
    proto.graph.initializer[0].CopyFrom(referring("w", (2**25, 2**25), location="weights.bin"))
    path.write_bytes(proto.SerializeToString())
    assert _error(path) == (
        f"Cannot read {path}: tensor 'w' ends at byte {2**52} of weights.bin, which has 4096. "
        "The file may be cut short."
    )


def _fuzzed(seed: int, count: int, *options: str) -> dict[str, str]:
    """Files by outcome, from the last line of the script; none needed much memory."""
    command = [sys.executable, "-m", "scripts.fuzz_files", "--seed", str(seed), "--count", str(count), *options]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    *_, peak, counts = done.stdout.strip().splitlines()
    assert int(peak.split()[-2]) < _MOST_MIB, peak
    return dict(part.split() for part in counts.split(", "))


@pytest.mark.slow
def test_damaged_files() -> None:
    """150 damaged files are read or refused in our words, through loading, finding, inspecting and converting."""
    counts = _fuzzed(0, 150)
    assert int(counts["read"]) > 20
    assert int(counts["refused"]) > 60


@pytest.mark.slow
def test_many_damaged_files() -> None:
    """2,000 others."""
    counts = _fuzzed(1000, 2000)
    assert int(counts["read"]) + int(counts["refused"]) == 2000


def test_the_script_sees_what_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a reader that raises is told with its step and place."""

    def planted(model: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(fuzz_files, "find_attentions", planted)
    outcomes = [fuzz_files.one_file(seed) for seed in range(12)]
    assert any(outcome.startswith("escaped: find\n") and "planted" in outcome for outcome in outcomes)


def test_the_script_sees_what_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted: a reader that writes a file elsewhere is named with the file."""
    monkeypatch.setattr(fuzz_files, "find_attentions", lambda _: (tmp_path / "mark").write_text("x"))
    outcomes = {fuzz_files.one_file(seed) for seed in range(12)}
    assert f"escaped: written outside: open {tmp_path / 'mark'}" in outcomes


FAULTS = {
    "crash": ("os._exit(139)", "it ended with status 35584"),  # 139 * 256
    "signal": ("os.kill(os.getpid(), 11)", "it ended with status 11"),
    "hang": ("time.sleep(60)", "not finished after 1 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_and_a_hang_are_seen(fault: str) -> None:
    """Planted: the file is named, and the next one follows."""
    code, text = FAULTS[fault]
    program = (
        "import os, sys, time\nimport scripts.fuzz_files as script\n"
        f"script.find_attentions = lambda model: {code}\n"
        "sys.argv = ['fuzz', '--count', '24', '--seconds', '1']\nsys.exit(script.main())\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f": escaped: {text}" in done.stdout
    assert "refused" in done.stdout.splitlines()[-1]
