"""Fuzz the reader with damaged files: print every exception that is not one of our errors; exit 1 if there is any.

Run from the root of the repository: `python -m scripts.fuzz_files --seed 0 --count 2000`. Each file is loaded,
hashed and inspected, its values are read, its attentions are found and converted to a form; `fuzz_commands` runs the
commands. Each file has a process of its own (a fork, so that nothing is imported again), with which a crash or a hang
of native code ends. The last lines have the longest time, the largest memory and the number of files by outcome.
"""

import argparse
import contextlib
import functools
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from sdpa_onnx.cli.error_boundary import is_out_of_memory
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from tests.graph.mutations import damaged

# Flags of os.open with which a file may be changed.
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Address space of a file's process: what asks for more gets a MemoryError, and the machine stays usable.
_MOST_BYTES = 8 * 2**30
_PATH_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link")


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzedFile:
    """What became of one file.

    Args:
        outcome: "refused: ...", "read", or "escaped: ..." with a traceback, a signal or a changed file.
        seconds: Of its process.
        bytes: The largest memory of its process (VmHWM).
    """

    outcome: str
    seconds: float
    bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=60.0, help="of one file; longer is a hang")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    for seed in range(options.seed, options.seed + options.count):
        fuzzed = in_process(partial(one_file, seed), options.seconds)
        outcomes[fuzzed.outcome.partition(":")[0]] += 1
        slowest, largest = max(slowest, fuzzed.seconds), max(largest, fuzzed.bytes)
        if fuzzed.outcome.startswith("escaped") or options.verbose:
            print(f"seed {seed}: {fuzzed.outcome}, {fuzzed.seconds:.1f} s, {fuzzed.bytes / 2**20:.0f} MiB", flush=True)
    print(f"longest {slowest:.1f} s, largest {largest / 2**20:.0f} MiB")
    print(", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    return 1 if outcomes["escaped"] else 0


def in_process(work: Callable[[], str], seconds: float) -> FuzzedFile:
    """Do work in a fork, which is killed after a time."""
    start = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _answer(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        ready, _, _ = select.select([answers], [], [], seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = answers.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    took = time.monotonic() - start
    if not ready:
        return FuzzedFile(outcome=f"escaped: not finished after {seconds:g} s", seconds=took, bytes=0)
    peak, _, outcome = text.partition("\n")
    if not outcome:
        return FuzzedFile(outcome=f"escaped: it ended with status {status}", seconds=took, bytes=0)
    return FuzzedFile(outcome=outcome, seconds=took, bytes=int(peak))


def _answer(work: Callable[[], str], writer: int) -> NoReturn:
    """Write the memory and the outcome into the pipe, and end the process without any cleaning up of the parent's."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what onnxruntime prints
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    try:
        outcome = work()
    except BaseException:  # noqa: BLE001  # the process ends here
        outcome = f"escaped: the script\n{traceback.format_exc()}"
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    os.write(writer, f"{int(peak) * 1024}\n{outcome[:4000]}".encode())
    os._exit(0)


def one_file(seed: int) -> str:
    """The outcome of one damaged file: "refused: ...", "read" or "escaped: ..."."""
    with tempfile.TemporaryDirectory() as folder:
        inside, outside = Path(folder) / "in", Path(folder) / "out"
        inside.mkdir()
        outside.mkdir()
        path = damaged(seed, inside)
        before = listed(inside)
        with changed_files(outside) as changed:
            outcome = _loaded(path, seed)
        if listed(inside) != before:
            return "escaped: the folder of the model was changed"
        return f"escaped: written outside: {', '.join(changed)}" if changed else outcome


def listed(folder: Path) -> list[tuple[str, int, int]]:
    """Every entry of a folder, with its size and the time of its last change."""
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*"))


class _Watch:
    """What Python opens for writing, moves or removes outside of a folder."""

    def __init__(self) -> None:
        self.allowed: tuple[Path, ...] = ()
        self.changed: list[str] = []
        sys.addaudithook(self._see)  # for the rest of the process: there is no way to remove one

    def _see(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.allowed or (event != "open" and event not in _PATH_EVENTS):
            return
        place, last = arguments[0], arguments[-1]
        if event == "open":
            if not isinstance(last, int) or not last & _WRITES:
                return
        elif isinstance(last, int) and last >= 0:
            return  # relative to an open folder: a temporary one is emptied
        if not isinstance(place, str | os.PathLike) or place == os.devnull:
            return
        if not any(Path(place).is_relative_to(folder) for folder in self.allowed):
            self.changed.append(f"{event} {place!s}")


@functools.cache
def _watch() -> _Watch:
    return _Watch()


@contextlib.contextmanager
def changed_files(*allowed: Path) -> Iterator[list[str]]:
    """The files that are changed outside of some folders; temporary ones go into the last of these."""
    watch = _watch()
    temporary, tempfile.tempdir = tempfile.tempdir, str(allowed[-1])
    watch.allowed, watch.changed = allowed, []
    try:
        yield watch.changed
    finally:
        tempfile.tempdir, watch.allowed = temporary, ()


def _loaded(path: Path, seed: int) -> str:
    try:
        model = load_model(path)
    except SdpaOnnxError as error:
        return f"refused: {error}"
    except Exception:  # noqa: BLE001  # the fault that this script looks for
        return f"escaped: load\n{traceback.format_exc()}"
    return _used(model, seed)


def _used(model: OnnxModel, seed: int) -> str:
    form = list(Form)[seed // 6 % len(Form)]
    steps: dict[str, Callable[[], object]] = {
        "tap": lambda: model.tapped().to_bytes(),
        "hash": model.content_hash,
        "link": model.linked,
        "find": lambda: find_attentions(model.ir),
        "inspect": lambda: inspect_model(model, target="m"),
        f"convert {form.value}": lambda: _converted(model, form),
    }
    for name, step in steps.items():
        try:
            step()
        except SdpaOnnxError:
            pass
        except Exception as error:  # noqa: BLE001
            if is_out_of_memory(error):  # a command says so in one sentence
                continue
            return f"escaped: {name}\n{traceback.format_exc()}"
    return "read"


def _converted(model: OnnxModel, form: Form) -> bytes:
    return convert_model(model, form).model.to_bytes()


if __name__ == "__main__":
    sys.exit(main())
