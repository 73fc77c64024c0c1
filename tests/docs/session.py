"""Runs the blocks of a page, in order, in one folder, as a reader would; decides nothing about their text."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, Varies, blocks, given
from tests.docs.recipes import prepared

# A reader has `sdpa-onnx`, `python` and `pip` of one environment. Here pip installs into a folder of the page, without
# an index: what a page installs is what it has written itself.
_TOOLS = {
    "sdpa-onnx": '#!/bin/bash\nexec "{python}" -m sdpa_onnx "$@"\n',
    "python": '#!/bin/bash\nexec "{python}" "$@"\n',
    "pip": (
        '#!/bin/bash\n[ "$1" = install ] || exit 2\n'
        'exec "{python}" -m pip install -q --no-index --no-deps --no-build-isolation --target "{site}" "${{@:2}}"\n'
    ),
}
_SEEDED = {"COLUMNS": "80", "LINES": "40", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

# What depends on the machine or the moment: numbers with their units, the verdict on a ratio, and the rule of a table
# that is as wide as its widest number.
_NUMBER = re.compile(
    r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?: ?(?:ns|µs|us|ms|s|min|%|GFLOP/s|GB/s|Gexp/s|MiB|MB|kB|KiB))?\b%?"
)
_RATIO_VERDICT = re.compile(r"\b(?:faster|slower|equal|inconclusive|noisy)\b(?: \([^)]*\))?", flags=re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One block or one command of it that ran.

    Args:
        place: File and line of the block.
        command: What ran.
        code: Its exit code; expected_code: the one that the page states, 0 if it states none.
        output: What it printed on stdout; shown: what the page prints under it, "" for nothing.
        messages: What it printed on stderr.
        varies: What of the output depends on the machine.
        from_console: Whether the page shows the command with its output in one block.
    """

    place: str
    command: str
    code: int
    expected_code: int
    output: str
    shown: str
    messages: str
    varies: Varies
    from_console: bool

    def fault(self) -> str:
        """What differs from the page, or ""."""
        if self.code != self.expected_code:
            return f"{self.place}: exit code {self.code}\n$ {self.command}\n{self.output}\n{self.messages}"
        if self.shown.strip() and not same(self.output, self.shown, varies=self.varies):
            return f"{self.place}: other output\n$ {self.command}\n{self.output}\n--- the page shows\n{self.shown}"
        return ""


def same(actual: str, shown: str, *, varies: Varies = Varies.NOTHING) -> bool:
    """Whether an output is what a page shows: line by line; a line `...` stands for any lines."""
    got, wanted = _lines(actual, varies=varies), _lines(shown, varies=varies)
    if varies is Varies.SENTENCES:
        return {line for line in wanted if not re.search(r"\bN\b|\bVERDICT\b", line)} - {"..."} <= set(got)
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in got)) is not None


def _lines(text: str, *, varies: Varies) -> list[str]:
    found = [line.rstrip() for line in text.strip("\n").splitlines()]
    if varies is Varies.NOTHING:
        return found
    plain = (_RATIO_VERDICT.sub("VERDICT", _NUMBER.sub("N", line)) for line in found)
    return [re.sub(r"[-─━ ]+", " ", line).strip() for line in plain]


class Session:
    """A folder with the tools of a reader, and with the files that a page starts from."""

    def __init__(self, page: Path, folder: Path, *, store: Path) -> None:
        self._page = page
        self._folder = folder
        self._tools = folder.parent / f"{folder.name}-tools"
        self._site = folder.parent / f"{folder.name}-site"
        self._tools.mkdir()
        for name, text in _TOOLS.items():
            tool = self._tools / name
            tool.write_text(text.format(python=sys.executable, site=self._site), encoding="utf-8")
            tool.chmod(0o755)
        for name in given(page):
            source = prepared(name, store)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():  # a copy, since commands may write there
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)

    def run(self) -> list[Ran]:
        """Run every block that is not left out, and go on after a fault."""
        found: list[Ran] = []
        for block in blocks(self._page):
            if "printed" in block.notes:  # what the block in front of it prints
                found[-1] = replace(found[-1], shown=block.text, varies=block.varies)
            else:
                found += self._block(block)
        return found

    def _block(self, block: Block) -> list[Ran]:
        if block.not_run is not None:
            return []
        if (name := block.note("file")) is not None:
            self._write(name, block.text)
            return []
        commands: list[tuple[str, str]] = []
        match block.language:
            case "console":
                commands = block.commands()
            case "sh":
                commands = [(block.text, "")]
            case "python" if re.search(r"^def test_", block.text, flags=re.MULTILINE):
                self._write("test_page.py", block.text)
                commands = [("python -m pytest -q -p no:cacheprovider test_page.py", "")]
            case "python":
                self._write("page.py", block.text)
                commands = [("python page.py", "")]
        return [self._command(block, command, shown) for command, shown in commands]

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _command(self, block: Block, command: str, shown: str) -> Ran:
        # A reader has no xdist around the tests; with its variable set, the fixture skips what times something.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"} | _SEEDED
        env["PATH"] = os.pathsep.join([str(self._tools), env.get("PATH", "")])
        env["PYTHONPATH"] = os.pathsep.join([str(self._site), str(ROOT)])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", command],  # noqa: S607 (bash from PATH)
            cwd=self._folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(
            place=block.place,
            command=command,
            code=done.returncode,
            expected_code=int(block.note("exit code") or 0),
            output=done.stdout,
            shown=shown,
            messages=done.stderr,
            varies=block.varies,
            from_console=block.language == "console",
        )


def check(page: Path, folder: Path, *, store: Path) -> None:
    """Run a page; fail with the first three blocks that do not do what the page says."""
    faults = [fault for ran in Session(page, folder, store=store).run() if (fault := ran.fault())]
    if faults:
        pytest.fail("\n\n".join(faults[:3]), pytrace=False)
