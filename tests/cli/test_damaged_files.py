"""Damaged files through inspect, verify and convert, each command a fork; what the script reports is planted too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.process import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc says how many threads run"),
]
_ROOT = Path(__file__).parents[2]
_FILES = 26
_MOST_MIB = 2048


def _fuzzed(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, check=False)


def test_damaged_files_through_the_commands(tmp_path: Path) -> None:
    """26 files, two of each kind: an exit code of ours, one sentence, no file touched, little memory."""
    code = "import sys\nimport scripts.fuzz_commands as script\nsys.argv[0] = 'fuzz_commands'\nsys.exit(script.main())"
    done = _fuzzed(code, str(tmp_path / "rows"), "--seed", "5000", "--count", str(_FILES))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert len(rows) == 3 * _FILES
    assert {row["code"] for row in rows} == {0, 1, 2}
    assert max(row["mib"] for row in rows) < _MOST_MIB


PLANTED = {
    "raise KeyError('planted')": "traceback",
    "open('/tmp/sdpa-onnx-planted', 'w').close()": "changed outside: open /tmp/sdpa-onnx-planted",
    "os._exit(139)": "exit code 139",
    "os.kill(os.getpid(), 11)": "exit code -11",
    "time.sleep(600)": "not finished after 0 s",
    "bytearray(b'x') * 2**29": " MiB",
}
# One process for all: what takes seconds is the import. The file is one that every command reads.
_PLANTING = """
import json, os, sys, time
import scripts.fuzz_commands as script
import sdpa_onnx.graph.model as model

real = model.load_model
def load_model(path):
    exec(planted)
    return real(path)

imported = script.import_everything
imported()
script.import_everything = lambda: None
model.load_model = load_model
planted_texts, rows = json.loads(sys.argv[1]), sys.argv[2]
for number, planted in enumerate(planted_texts):
    script._MOST_SECONDS, script._GRACE_SECONDS, script._MOST_MIB = 60, 30, 10**6
    if "sleep" in planted:
        script._MOST_SECONDS, script._GRACE_SECONDS = 0, 1
    if "bytearray" in planted:
        script._MOST_MIB = 2**9
    sys.argv = ["fuzz_commands", f"{rows}{number}", "--count", "1"]
    print(script.main(), file=sys.stderr)
"""


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    """A fault in the reader is a finding of the script, and exit code 1."""
    done = _fuzzed(_PLANTING, json.dumps(list(PLANTED)), str(tmp_path / "rows"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.split() == ["1"] * len(PLANTED)
    for number, (planted, expected) in enumerate(PLANTED.items()):
        lines = (tmp_path / f"rows{number}").read_text().splitlines()
        found = [finding for line in lines for finding in json.loads(line)["findings"]]
        assert any(expected in finding for finding in found), (planted, found)
