"""`conformance`: exit codes, known findings, files and unknown names. Except in one test, the rows are faked."""

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.errors import RuntimeUnavailableError
from tests.cli.invoke import Shell
from tests.report.synthetic_conformance import row


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A command line in an empty folder, because these tests need no model."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capfd)


class Source:
    """Yields rows instead of running any, and records its calls."""

    def __init__(self, *records: ConformanceRecord, stops: bool = False) -> None:
        self.records = records
        self.stops = stops
        self.calls: list[tuple[str, dict[str, object]]] = []

    def __call__(self, runtime: str, **options: object) -> Iterator[ConformanceRecord]:
        self.calls.append((runtime, options))
        yield from self.records
        if self.stops:
            raise KeyboardInterrupt


def plant(monkeypatch: pytest.MonkeyPatch, *records: ConformanceRecord, stops: bool = False) -> Source:
    """Make the command receive these rows."""
    source = Source(*records, stops=stops)
    monkeypatch.setattr("sdpa_onnx.workflows.conformance.conformance", source)
    return source


WRONG = row(Conformity.WRONG, feature="causal", diagnosis="Off by one.", max_bound_ratio=9.0, max_abs_error=0.5)
REFUSED = row(Conformity.REFUSED, feature="gqa", reason="no kernel")


@pytest.mark.parametrize(
    ("verdict", "alone", "with_expect"),
    [
        *((Conformity.RIGHT, 0, 0), (Conformity.WRONG, 1, 1), (Conformity.SUSPICIOUS, 1, 1)),
        *((Conformity.REFUSED, 0, 1), (Conformity.CRASHED, 1, 1)),
    ],
)
def test_exit_code_of_each_verdict(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, verdict: Conformity, alone: int, with_expect: int
) -> None:
    """A refusal fails only with a file of known findings that does not list it."""
    plant(monkeypatch, row(), row(verdict, feature="gqa"))
    Path("k.toml").write_text('[[known]]\nkind = "conformance"\nfeature = "mqa"\nwhy = "seen"\n')
    assert shell("conformance").code == alone
    assert shell("conformance", "--expect", "k.toml").code == with_expect


@pytest.mark.parametrize("done", [0, 1])
def test_the_other_runtime_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    """A runtime that is gone is recorded in the rows that it still had; alone it is an error."""

    def rows(runtime: str, **_: object) -> Iterator[ConformanceRecord]:
        if runtime == "onnx-reference":
            yield from [row(runtime=runtime)] * done
            raise RuntimeUnavailableError("onnx-reference lost its device.")
        yield row(runtime=runtime)

    monkeypatch.setattr("sdpa_onnx.workflows.conformance.conformance", rows)
    choice = ("conformance", "--only", "softcap-mask", "--dtype", "float32", "--json")
    both = shell(*choice, "--runtime", "onnx-reference", "--runtime", "ort-cpu")
    records = json.loads(both.stdout)
    gone = [one for one in records if one["verdict"] == "crashed"]
    assert [one["verdict"] for one in records if one["runtime"] == "ort-cpu"] == ["right"]
    assert {one["reason"] for one in gone} == {"onnx-reference lost its device."}
    assert [one["opset"] for one in gone] == [23, 24, 25][done:]
    assert both.code == 1
    alone = shell(*choice, "--runtime", "onnx-reference")
    assert (alone.code, alone.stderr) == (2, "sdpa-onnx: onnx-reference lost its device.\n")


def test_only_new_findings_fail(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known findings pass; a new one fails; vanished ones pass and are reported."""
    plant(monkeypatch, WRONG, REFUSED)
    written = shell("conformance", "--write-expected", "k.toml")
    assert (written.code, written.stderr) == (0, "sdpa-onnx: wrote k.toml: 2 known findings\n")
    same = shell("conformance", "--expect", "k.toml")
    assert (same.code, same.stderr) == (0, "")
    assert "Compared with the known findings: 0 new, 2 known, 0 vanished." in same.stdout

    plant(monkeypatch, WRONG, REFUSED, row(Conformity.CRASHED, opset=24, reason="It died."))
    more = shell("conformance", "--expect", "k.toml")
    assert (more.code, more.stderr) == (1, "sdpa-onnx: new: ort-cpu Attention 24 float32 plain: crashed. It died.\n")

    plant(monkeypatch, row(feature="causal"), REFUSED)
    fewer = shell("conformance", "--expect", "k.toml", "--json")
    assert fewer.code == 0
    assert fewer.stderr.splitlines() == [
        "sdpa-onnx: Compared with the known findings: 0 new, 1 known, 1 vanished.",
        (
            "sdpa-onnx: vanished: k.toml, entry 1 (runtime ort-cpu, operator Attention, feature causal, opset 23, "
            "dtype float32, verdict wrong; Off by one.): its row is ok now. Remove the entry."
        ),
    ]
    assert [record["verdict"] for record in json.loads(fewer.stdout)] == ["right", "refused"]


def test_known_findings_are_never_overwritten(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing file is rejected before any row runs, whatever is in it."""
    plant(monkeypatch, WRONG)
    assert shell("conformance", "--write-expected", "k.toml").code == 0
    source = plant(monkeypatch, REFUSED)
    assert shell.refusal("conformance", "--write-expected", "k.toml") == (
        "k.toml already exists and is not overwritten. Choose another name; --expect k.toml copies its reasons into "
        "the new file."
    )
    assert source.calls == []


@pytest.mark.parametrize("option", ["--page", "--write-expected"])
@pytest.mark.parametrize("is_link", [False, True])
def test_pipe_is_rejected_before_anything_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, option: str, is_link: bool
) -> None:
    """The pipe is not replaced, and the command does not wait for it."""
    source = plant(monkeypatch, row())
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    name = "link" if is_link else "pipe"
    assert shell.refusal("conformance", option, name) == f"{name} is not a regular file. Give the name of a file."
    assert (source.calls, Path("pipe").is_fifo()) == ([], True)


@pytest.mark.parametrize(("package", "options"), [("jinja2", ["--page", "p.html", "--json"]), ("rich", [])])
def test_missing_package_is_reported_before_anything_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, package: str, options: list[str]
) -> None:
    """A package that only the output needs is checked at the start."""
    source = plant(monkeypatch, row())
    import_module = importlib.import_module

    def missing(name: str) -> ModuleType:
        if name == package:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    message = shell.refusal("conformance", *options)
    assert message == f"The package '{package}' is missing. Install it: pip install {package}."
    assert source.calls == []


def test_reasons_are_copied_into_the_new_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """--expect old --write-expected new keeps the reasons that a user wrote."""
    plant(monkeypatch, WRONG, REFUSED)
    Path("old.toml").write_text('[[known]]\nkind = "conformance"\nfeature = "gqa"\nwhy = "issue 7"\n')
    assert shell("conformance", "--expect", "old.toml", "--write-expected", "new.toml").code == 0
    whys = [line for line in Path("new.toml").read_text().splitlines() if line.startswith("why")]
    assert whys == ['why = "Off by one."', 'why = "issue 7"']


def test_json_is_the_records(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records on stdout and nothing else."""
    plant(monkeypatch, WRONG, REFUSED)
    ended = shell("conformance", "--json")
    assert (ended.code, ended.stderr) == (1, "")
    assert [record["feature"] for record in json.loads(ended.stdout)] == ["causal", "gqa"]


def test_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page contains no host name, user name or path."""
    plant(monkeypatch, WRONG, REFUSED)
    ended = shell("conformance", "--page", "out/p.html")
    assert (ended.code, ended.stderr) == (1, "sdpa-onnx: wrote out/p.html\n")
    page = Path("out/p.html").read_text()
    assert "Off by one." in page
    import getpass
    import platform

    for private in (platform.node(), str(Path.home()), str(Path.cwd()), platform.release(), f"/{getpass.getuser()}/"):
        assert private not in page


def test_interrupt(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C prints the finished rows and the command that repeats the run, writes no findings, and exits with 130."""
    plant(monkeypatch, WRONG, stops=True)
    ended = shell("conformance", "--only", "causal", "--seed", "3", "--page", "p.html", "--write-expected", "k.toml")
    assert ended.code == 130
    assert ended.stdout.startswith("Incomplete: the run was stopped, and only the rows finished by then follow.\n")
    assert ended.stderr.splitlines()[-1].startswith(
        "sdpa-onnx: interrupted after 1 row; run again: sdpa-onnx conformance "
    )
    assert "Incomplete: the run was stopped" in Path("p.html").read_text()
    assert not Path("k.toml").exists()


def test_nothing_vanishes_in_an_interrupted_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was not reached may still be wrong, so its entry is not reported as vanished."""
    plant(monkeypatch, row(feature="causal"), stops=True)
    Path("k.toml").write_text('[[known]]\nkind = "conformance"\nfeature = "causal*"\nwhy = "seen"\n')
    ended = shell("conformance", "--expect", "k.toml")
    assert ended.code == 130
    assert "vanished:" not in ended.stderr
    assert "Compared with the known findings: 0 new, 0 known, 0 vanished." in ended.stdout


def test_options_reach_the_runner(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns and groups become features in table order; the other options are passed on."""
    source = plant(monkeypatch, row())
    options = ["--only", "mha-causal-past*", "--only", "window", "--opset", "25", "--dtype", "float16", "--seed", "3"]
    assert (
        shell("conformance", *options, "--timeout", "2", "--runtime", "ort-cpu", "--runtime", "onnx-reference").code
        == 0
    )
    assert [runtime for runtime, _ in source.calls] == ["ort-cpu", "onnx-reference"]
    received = source.calls[0][1]
    only = received.pop("only")
    assert isinstance(only, tuple)
    assert only[:2] == ("window-left", "window-right")
    assert only[-2:] == ("mha-causal-past", "mha-causal-past-lengths-differ")
    assert received == {
        "operators": (),
        "opsets": (25,),
        "dtypes": ("float16",),
        "seed": 3,
        "threads": 1,
        "timeout_seconds": 2.0,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--only", "causal-past-one-qery"],
            "There is no feature 'causal-past-one-qery'. Did you mean 'causal-past-one-query'?",
        ),
        (["--only", "zzz*"], "There is no feature 'zzz*'. See --list."),
        (
            ["--operator", "MultiHeadAttention"],
            "There is no operator 'MultiHeadAttention'. Did you mean 'com.microsoft.MultiHeadAttention'?",
        ),
        (["--dtype", "flaot16"], "There is no element type 'flaot16'. Did you mean 'float16'?"),
        (["--opset", "26"], "No feature matches this selection. Leave out --opset or --operator."),
        (["--runtime", "ort-cpy"], None),
        (["--page", "."], ". is a folder. Give the name of a file."),
        (["--write-expected", "."], ". is a folder. Give the name of a file."),
        (["--expect", "gone.toml"], "Cannot read known findings gone.toml: No such file or directory."),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, list) else "",
)
def test_mistakes_are_reported_before_anything_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str | None
) -> None:
    """An unknown name or an unusable file is rejected before the work starts."""
    source = plant(monkeypatch, row())
    message = shell.refusal("conformance", *options)
    assert sentence is None or message == sentence
    assert source.calls == []


def test_list(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """--list prints every feature with its operator and title, and runs nothing."""
    from sdpa_onnx.workflows.conformance import features

    source = plant(monkeypatch)
    ended = shell("conformance", "--list")
    assert (ended.code, ended.stderr, source.calls) == (0, "", [])
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [feature.slug for feature in features()]
    listed = json.loads(shell("conformance", "--list", "--json").stdout)
    assert [one["source"] for one in listed] == [feature.source for feature in features()]


def test_real_rows(shell: Shell) -> None:
    """Two features of onnxruntime itself, one right and one wrong, and the command that repeats the wrong one."""
    ended = shell(
        "conformance", "--only", "plain", "--only", "causal-past-one-query", "--opset", "23", "--dtype", "float32"
    )
    assert ended.code == 1
    assert ended.stdout.startswith("ort-cpu (onnxruntime ")
    text = " ".join(ended.stdout.split())
    assert ": 1 right, 1 wrong, 0 refused, 0 crashed of 2 rows" in text
    assert "--runtime ort-cpu --only causal-past-one-query --opset 23 --dtype float32\n" in ended.stdout


def test_command_to_repeat_keeps_the_timeout(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption the printed command has the same --timeout; the default is left out."""
    plant(monkeypatch, WRONG, stops=True)
    assert "--timeout 3" in shell("conformance", "--only", "causal", "--timeout", "3").stderr
    plant(monkeypatch, WRONG, stops=True)
    assert "--timeout" not in shell("conformance", "--only", "causal").stderr
