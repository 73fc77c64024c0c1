"""Fuzz the commands with damaged files: tracebacks, hangs, crashes, memory, files touched outside; exit 1 if any.

Run from the root of the repository: `python -m scripts.fuzz_commands ROWS.jsonl --count 2000 [--files F.onnx ...]`.
Each damaged file goes through `inspect`, `verify` and `convert` (a form in turn). Each command is a fork of this
process, which has imported what the commands import and runs no thread, and the workers of the command are forks
too: a file takes a second instead of ten. Each command is added to ROWS.jsonl when it ends, with its exit code, what
it printed on stderr, seconds and memory (of the command plus its largest worker); files that are there are not run
again. `--show` prints the counts, and every command that was not as it must be.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import onnx

from scripts.fuzz_files import changed_files, listed
from sdpa_onnx.cli.main import main as command_line
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.runtimes import worker_process
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime
from tests.graph.mutations import BASES, damaged

# Address space of a command: what asks for more gets a MemoryError, and the machine stays usable.
_MOST_BYTES = 8 * 2**30
_MOST_MIB, _MOST_SECONDS, _GRACE_SECONDS = 2048, 60.0, 30.0
# Of one answer of the runtime: a damaged Loop may count to 2**62.
_TIMEOUT = "10"
_COMMANDS = ("inspect", "verify", "convert")
_EXIT_CODES = frozenset({0, 1, 2})
_MOST_TEXT = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="one JSON object a line")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="damage copies of these too")
    parser.add_argument("--only", type=int, nargs="*", help="run these seeds again, print the rows, and keep none")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds after which no file is begun")
    parser.add_argument("--show", action="store_true", help="print the counts of the rows so far")
    chosen = parser.parse_args()
    bases = BASES | {str(path): partial(onnx.load, path) for path in chosen.files}
    if not chosen.show:
        import_everything()
        end = time.monotonic() + chosen.until
        for seed in chosen.only or _missing(chosen.rows, range(chosen.seed, chosen.seed + chosen.count)):
            if time.monotonic() > end:
                break
            rows = [json.dumps(row) for row in through_commands(seed, bases)]
            if chosen.only:
                print("\n".join(rows))
                continue
            with chosen.rows.open("a") as file:
                file.write("".join(f"{row}\n" for row in rows))
    return 0 if chosen.only else _show(_read(chosen.rows))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _missing(path: Path, seeds: Iterable[int]) -> list[int]:
    done = {row["seed"] for row in _read(path)}
    return [seed for seed in seeds if seed not in done]


def _show(rows: Sequence[Mapping[str, Any]]) -> int:
    found = [row for row in rows if row["findings"]]
    for row in found:
        print(f"seed {row['seed']}, {row['base']}, {row['command']}: {'; '.join(row['findings'])}\n  {row['said']}")
    codes = Counter(f"{row['command']} {row['code']}" for row in rows)
    print(", ".join(f"{name}: {count}" for name, count in sorted(codes.items())))
    slowest, largest = max((row["seconds"] for row in rows), default=0), max((row["mib"] for row in rows), default=0)
    print(f"{len({row['seed'] for row in rows})} files, longest command {slowest:.1f} s, largest {largest} MiB")
    print(f"{len(rows)} commands, {len(found)} with a finding")
    return 1 if found else 0


def import_everything() -> None:
    """Import here what a command imports, so that no fork has to.

    Raises:
        RuntimeError: If an import started a thread, which a fork would not have.
    """
    import_onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(BASES["several"](), path)
        names = Path(folder) / "names"
        for command in _COMMANDS:
            _wait(_fork(partial(_command, _arguments(command, path, 0, path.parent / "g.onnx"), Path(folder), names)))
            for name in names.read_text().split():
                if name.partition(".")[0] != "torch" and name != "__main__":
                    try:
                        __import__(name)
                    except ImportError:  # made by another module, such as sdpa_onnx_worker
                        continue
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"{threads} threads run: a fork would lack them.")


def through_commands(seed: int, bases: Mapping[str, Callable[[], onnx.ModelProto]]) -> list[dict[str, Any]]:
    """The rows of one damaged file, one per command."""
    with tempfile.TemporaryDirectory() as folder:
        inside, outside = Path(folder) / "in", Path(folder) / "out"
        inside.mkdir()
        outside.mkdir()
        path = damaged(seed, inside, bases)
        before = listed(inside)
        rows = []
        for command in _COMMANDS:
            row = {"seed": seed, "base": Path(list(bases)[seed % len(bases)]).parent.name or "", "command": command}
            row["base"] = row["base"] or list(bases)[seed % len(bases)]
            row |= _run(_arguments(command, path, seed, outside / "g.onnx"), outside)
            if listed(inside) != before:
                row["findings"].append("the folder of the model was changed")
            left = sorted(one.name for one in outside.iterdir())
            if left not in ([], ["g.onnx"], ["g.onnx", "g.onnx.data"]):
                row["findings"].append(f"left behind: {', '.join(left)}")
            rows.append(row)
            shutil.rmtree(outside)
            outside.mkdir()
    return rows


def _arguments(command: str, path: Path, seed: int, output: Path) -> list[str]:
    forms = list(Form)
    more = ["-o", str(output), "--form", forms[seed // 7 % len(forms)].value] if command == "convert" else []
    return [command, str(path), *more, "--timeout", _TIMEOUT]


def _run(arguments: list[str], outside: Path) -> dict[str, Any]:
    """One command in a fork: its exit code, what it printed on stderr, time, memory, and what is wrong with them."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as kept:
        child = _fork(partial(_command, arguments, outside, Path(kept) / "names", kept=Path(kept)))
        code, is_killed = _wait(child, _MOST_SECONDS + _GRACE_SECONDS)
        seconds = time.monotonic() - start
        said = (Path(kept) / "stderr").read_text(errors="replace")
        facts = Path(kept) / "facts"
        mib, cpu_seconds, changed = json.loads(facts.read_text()) if facts.exists() else (0, 0.0, [])
        temporary = sorted({one.name for one in Path(kept).iterdir()} - {"stdout", "stderr", "facts"})
    findings = [f"changed outside: {one}" for one in changed] + [f"temporary {one} left" for one in temporary]
    if is_killed or seconds > _MOST_SECONDS:
        findings.append(f"not finished after {_MOST_SECONDS:g} s")
    elif code not in _EXIT_CODES:
        findings.append(f"exit code {code}")
    if "Traceback" in said or "This is a bug" in said:
        findings.append("traceback")
    if "cannot be imported" in said:
        findings.append("nothing was run: the installation is not that of this code")
    if mib > _MOST_MIB:
        findings.append(f"{mib} MiB")
    said = " | ".join(line for line in said.strip().splitlines() if line)
    return {
        "code": code,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "mib": mib,
        "findings": findings,
        "said": said if len(said) <= _MOST_TEXT else f"...{said[-_MOST_TEXT:]}",
    }


def _fork(work: Callable[[], NoReturn]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setsid()
        work()
    return child


def _wait(child: int, seconds: float = 120.0) -> tuple[int, bool]:
    """Wait for a fork; after the time, kill it and its workers."""
    end = time.monotonic() + seconds
    pause = 0.005
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), True


def _command(arguments: list[str], allowed: Path, names: Path, kept: Path | None = None) -> NoReturn:
    """Run a command line in this fork, write what is known of it, and end without the cleaning up of the parent."""
    kept = allowed if kept is None else kept
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    for number, name in ((0, os.devnull), (1, kept / "stdout"), (2, kept / "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.argv = ["sdpa-onnx", *arguments]
    worker_process.subprocess = _Forks()  # type: ignore[assignment]
    code = 0
    with changed_files(allowed, kept) as changed:
        try:
            command_line()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001  # the fault that this script looks for
            traceback.print_exc()
            code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime
    (kept / "facts").write_text(json.dumps([(own.ru_maxrss + workers.ru_maxrss) // 1024, seconds, list(changed)]))
    if kept is allowed:
        names.write_text(" ".join(sys.modules))
    os._exit(code)


class _Forks:
    """What `worker_process` uses of `subprocess`, with workers that are forks of the command."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def Popen(  # noqa: N802  # the name of its twin
        self, command: list[str], *, pass_fds: Sequence[int], env: Mapping[str, str], stderr: IO[bytes], **_: object
    ) -> "_Fork":
        child = os.fork()
        if not child:
            _serve(command[-1], pass_fds, env, stderr)
        return _Fork(child)


class _Fork:
    """A forked worker as `subprocess.Popen` shows it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (1e9 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(code: str, kept: Sequence[int], env: Mapping[str, str], stderr: IO[bytes]) -> NoReturn:
    """Run the text that starts a worker, as `python -c` does."""
    try:
        os.dup2(stderr.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in kept:
                try:
                    os.close(number)
                except OSError:  # that of the listing itself, and closed
                    continue
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(one, signal.SIG_DFL)
        os.environ.update(env)
        exec(compile(code, "<worker>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except SystemExit:
        os._exit(1)
    except BaseException:  # noqa: BLE001  # the process ends here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
