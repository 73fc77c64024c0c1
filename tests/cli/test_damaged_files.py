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
_MOST_MIB = 2048


def _fuzzed(rows: Path, program: str, *options: str) -> "subprocess.CompletedProcess[str]":
    code = f"import sys\n{program}\nsys.argv[0] = 'fuzz_commands'\nsys.exit(script.main())"
    command = [sys.executable, "-c", code, str(rows), *options]
    return subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, check=False)


def test_damaged_files_through_the_commands(tmp_path: Path) -> None:
    """52 files, four of each kind: an exit code of ours, one sentence, no file touched, little memory."""
    done = _fuzzed(tmp_path / "rows", "import scripts.fuzz_commands as script", "--seed", "5000", "--count", "52")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert len(rows) == 3 * 52
    assert {row["code"] for row in rows} == {0, 1, 2}
    assert max(row["mib"] for row in rows) < _MOST_MIB


PLANTED = {
    "raise KeyError('planted')": "traceback",
    "open('/tmp/sdpa-onnx-planted', 'w').close()": "changed outside: open /tmp/sdpa-onnx-planted",
    "os._exit(139)": "exit code 139",
    "os.kill(os.getpid(), 11)": "exit code -11",
    "time.sleep(60)": "not finished after 0 s",
    "bytearray(3 * 2**30)[::4096]": " MiB",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted: str, tmp_path: Path) -> None:
    """A fault in the reader is a finding of the script, and exit code 1."""
    program = (
        "import os, time\nimport scripts.fuzz_commands as script\nimport sdpa_onnx.graph.model as model\n"
        "script._MOST_SECONDS = 0 if 'sleep' in sys.argv.pop(1) else 60\nscript._GRACE_SECONDS = 1\n"
        f"real = model.load_model\ndef load_model(path):\n    {planted}\n    return real(path)\n"
        "imported = script.import_everything\n"
        "def import_everything():\n    imported()\n    model.load_model = load_model\n"
        "script.import_everything = import_everything"
    )
    rows = tmp_path / "rows"
    code = f"import sys\n{program}\nsys.argv[0] = 'fuzz_commands'\nsys.exit(script.main())"
    command = [sys.executable, "-c", code, planted, str(rows), "--count", "1"]
    done = subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = [json.loads(line)["findings"] for line in rows.read_text().splitlines()]
    assert any(PLANTED[planted] in finding for findings in found for finding in findings), found
