"""The CI kit does what it says: the very steps of its workflow files, run in a scratch repository."""

import re
import sysconfig
from pathlib import Path

import pytest

from tests.ci_runner import KIT, ROOT, TWICE, Runner, git, load, module, scratch_repository

pytestmark = pytest.mark.alone


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return scratch_repository(tmp_path)


# How a comment on mymodel.py:Block begins: its POSIX checksum.
MARK = "<!-- sdpa-onnx: attention 855079034 -->"


# What the files say, without running anything heavy.


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_every_line_calls_the_script(name: str) -> None:
    """The files are YAML, and their commands are those that the script knows."""
    script = (KIT / "attention.sh").read_text(encoding="utf-8")
    called = re.findall(r"bash ci/attention\.sh ([\w-]+)", (KIT / name).read_text(encoding="utf-8"))
    assert load(name)
    assert {"prepare", "gate", "history"} < set(called)
    usage = re.search(r"usage: attention\.sh ([\w|-]+)", script)
    assert usage is not None
    assert set(called) <= set(usage[1].split("|"))


def test_github_has_least_rights_and_pinned_actions() -> None:
    """Reading is the rule, writing comments the exception of one job; never a workflow that trusts a fork."""
    workflow = load("github.yml")
    triggers = workflow[True]  # YAML 1.1 reads `on` as true
    assert set(triggers) == {"pull_request", "push", "schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["gate"]["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert workflow["jobs"]["history"]["permissions"] == {"contents": "read", "actions": "read"}
    uses = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", one) for one in uses), uses
    with_token = [
        step["name"] for job in workflow["jobs"].values() for step in job["steps"] if "GH_TOKEN" in step.get("env", {})
    ]
    assert with_token == ["Comment", "Fetch"]


@pytest.mark.parametrize("page", ["docs/howto/ci.md", "docs/ci/attention.sh", "docs/ci/github.yml"])
def test_options_exist(page: str) -> None:
    """Every option of ours that the kit and its page name is one that the command has."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    asked = re.findall(r"(?:sdpa-onnx|-m sdpa_onnx) (\w+)([^`\n|]*)", text)
    for command, words in asked:
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words))
        assert options <= _options(command), (command, words)
    assert asked or page.endswith("yml")


def _options(command: str) -> set[str]:
    from typer.main import get_command

    from sdpa_onnx.cli.main import app

    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    return {option for parameter in found.params for option in parameter.opts}


def test_page_has_every_variable() -> None:
    """What a user sets in the workflow files is explained."""
    page = (ROOT / "docs" / "howto" / "ci.md").read_text(encoding="utf-8")
    settings = {"TARGET", "SIZES", "MARGIN", "INSTALL", "SETUP", "EXPORT", "COMPARE"}
    assert {name for name in settings if f"`{name}`" in page} == settings
    assert set(load("github.yml")["env"]) - {"PIP_EXTRA_INDEX_URL"} <= settings


def test_unknown_command_is_refused(runner: Runner) -> None:
    """A slip of the hand is an error, not a green job."""
    assert runner.run("bash ci/attention.sh gates") == 2
    assert runner.printed.startswith("usage: attention.sh prepare|gate|")


# Comments and artifacts, by a `gh` and a `curl` that write down what they are asked.


def _gate_text(runner: Runner, text: str = "verdict") -> None:
    (runner.folder / "attention").mkdir(exist_ok=True)
    (runner.folder / "attention" / "gate.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        ("", "--method POST repos/someone/something/issues/7/comments -F body=@"),
        ("55\n", "--method PATCH repos/someone/something/issues/comments/55 -F body=@"),
        ("55\n66\n", "--method PATCH repos/someone/something/issues/comments/55 -F body=@"),
    ],
    ids=["first", "again", "two of them"],
)
def test_the_comment_is_written_once(runner: Runner, comments: str, expected: str) -> None:
    """The first run writes a comment, later ones write it again in place."""
    _gate_text(runner)
    Path(runner.variables["COMMENTS"]).write_text(comments, encoding="utf-8")
    assert runner.run("bash ci/attention.sh comment-github", runner.variables | {"PULL_REQUEST": "7"}) == 0
    asked, written = runner.asked
    assert f'startswith("{MARK}")' in asked
    assert expected in written
    comment = (runner.folder / "attention" / "comment.md").read_text(encoding="utf-8")
    assert comment == f"{MARK}\nverdict\n"


def test_a_long_comment_is_cut(runner: Runner) -> None:
    """GitHub refuses more than 65536 characters."""
    _gate_text(runner, "x" * 100_000)
    assert runner.run("bash ci/attention.sh comment-github", runner.variables | {"PULL_REQUEST": "7"}) == 0
    assert 60_000 < len((runner.folder / "attention" / "comment.md").read_text(encoding="utf-8")) < 65_000


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("[]", "--request POST"),
        (f'[{{"id": 4, "body": "hello"}}, {{"id": 9, "body": "{MARK} old"}}]', "notes/9"),
    ],
    ids=["first", "again"],
)
def test_the_note_is_written_once(runner: Runner, notes: str, expected: str) -> None:
    """The same on GitLab."""
    _gate_text(runner)
    Path(runner.variables["COMMENTS"]).write_text(notes, encoding="utf-8")
    assert runner.run("bash ci/attention.sh comment-gitlab", runner.variables | {"GITLAB_NOTE_TOKEN": "secret"}) == 0
    assert expected in runner.asked[-1]
    assert "secret" not in runner.printed


def test_earlier_runs_are_fetched(runner: Runner) -> None:
    """The artifact of this branch is unpacked; where there is none, the job goes on."""
    assert runner.run("bash ci/attention.sh fetch-github") == 0
    assert runner.printed == "No earlier history.\n"
    assert 'head_branch == "main"' in runner.asked[0]
    earlier = Path(runner.variables["EARLIER"])
    (earlier / "20260101T000000Z-abc").mkdir(parents=True)
    Path(runner.variables["ARTIFACT"]).write_text("12\n", encoding="utf-8")
    assert runner.run("bash ci/attention.sh fetch-github") == 0
    assert "run download 12 --repo someone/something --name attention-history" in runner.asked[-1]
    assert (runner.folder / "attention" / "history" / "20260101T000000Z-abc").is_dir()
    assert runner.run("bash ci/attention.sh fetch-gitlab") == 0


# The whole jobs.


@pytest.mark.slow
def test_no_change_is_green(runner: Runner) -> None:
    """A comment in the module is no regression: exit code 0, summary, comment, a JUnit file without a failure."""
    runner.commit(module() + "\n# a comment\n")
    assert runner.github("gate") == 0, runner.printed
    assert runner.ended == {"Prepare": 0, "Gate": 0, "Summary": 0, "Comment": 0}
    assert "no regression" in runner.summary
    assert runner.summary.endswith("Exported from `mymodel.py:Block`.\n")
    assert runner.failures() == set()
    assert str(runner.folder) not in runner.summary


@pytest.mark.slow
def test_twice_the_work_is_red(runner: Runner) -> None:
    """The same numbers in twice the time: the gate on time fails, is in the summary and is still commented."""
    runner.commit(module(attended=TWICE))
    assert runner.github("gate") == 1, runner.printed
    assert runner.ended == {"Prepare": 0, "Gate": 1, "Summary": 0, "Comment": 0}
    assert re.search(r"\| time \| \*\*regression\*\* \|", runner.summary), runner.summary
    assert not re.search(r"\| agreement \| \*\*regression\*\* \|", runner.summary), runner.summary
    assert runner.failures() == {"graph", "time"}


@pytest.mark.slow
def test_a_wrong_scale_is_red(runner: Runner) -> None:
    """On GitLab: a scale that changed gives other outputs; what may be slower is not asked."""
    base = git(runner.folder, "rev-parse", "HEAD")
    runner.commit(module(scale="0.3"))
    runner.variables |= {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "BASE": base, "COMPARE": "--skip time --skip memory"}
    runner.variables |= {"GITLAB_NOTE_TOKEN": "secret"}
    Path(runner.variables["COMMENTS"]).write_text("[]", encoding="utf-8")
    assert runner.gitlab("attention-gate") == 1, runner.printed
    text = (runner.folder / "attention" / "gate.md").read_text(encoding="utf-8")
    assert re.search(r"\| agreement \| \*\*regression\*\* \|", text), text
    assert runner.failures() == {"agreement"}
    assert "--request POST" in runner.asked[-1]


@pytest.mark.slow
def test_a_new_module_is_judged_by_itself(runner: Runner) -> None:
    """The base has nothing to compare with: the head is verified, and the comment says so."""
    runner.commit(module().replace("class Block", "class Newer"))
    runner.variables["TARGET"] = "mymodel.py:Newer"
    assert runner.github("gate") == 0, runner.printed
    assert "nothing to compare with" in runner.summary
    assert "All 13 checks agree on ort-cpu." in runner.summary


@pytest.mark.slow
def test_a_broken_head_is_red_and_says_why(runner: Runner) -> None:
    """What cannot be asked is not green: exit code 2 and the message in the comment."""
    runner.commit("import sys\nprint('```\\n# loud', file=sys.stderr)\nimport nothing_of_this_name\n")
    assert runner.github("gate") == 2
    assert runner.ended == {"Prepare": 0, "Gate": 2, "Summary": 0, "Comment": 0}
    assert "### Attention: not compared" in runner.summary
    assert "nothing_of_this_name" in runner.summary
    assert "\n    # loud\n" in runner.summary  # in the block, which it cannot end


@pytest.mark.slow
def test_the_history_grows(runner: Runner) -> None:
    """A run is added to those of before, the oldest are dropped, and the history is in the summary."""
    suite = "name = 'small'\nopsets = [23]\ntiming = ['ort-cpu', 'torch']\nspreads = [1.0]\nprobes = false\n"
    suite += "[measure]\nbudget_seconds = 1.0\n[[vary]]\ntargets = ['sdpa']\nq_seq_len = [32]\n"
    (runner.folder / "small.toml").write_text(suite, encoding="utf-8")
    runner.variables |= {"SUITE": "small.toml", "KEEP": "2"}
    earlier = runner.folder / "attention" / "history"
    for day in (1, 2):
        (earlier / f"2020010{day}T000000Z-abc").mkdir(parents=True)
    assert runner.github("history") == 0, runner.printed
    assert runner.ended == {"Prepare": 0, "Fetch": 0, "History": 0, "Summary": 0}
    kept = sorted(path.name for path in earlier.iterdir() if path.name.startswith("2"))
    assert kept[0] == "20200102T000000Z-abc"
    assert kept[1].endswith(git(runner.folder, "rev-parse", "--short", "HEAD"))
    assert len(kept) == 2
    assert "No level change in 1 run (1 series)." in runner.summary
    assert not (earlier / kept[1] / "samples").exists()


@pytest.mark.slow
def test_an_environment_is_made_for_each_revision(runner: Runner) -> None:
    """With INSTALL and SETUP: two environments, ours in both, and the command run in either revision."""
    runner.commit(module() + "# head\n")
    ours = sysconfig.get_paths()["purelib"]
    runner.variables |= {
        "BASE": "HEAD^1",
        "INSTALL": f"--no-index --no-deps --no-build-isolation {ROOT}",
        "SETUP": "sdpa-onnx --help >help.txt; python -c 'import sys; print(sys.prefix)' >prefix.txt",
        "PYTHONPATH": ours,  # no network here: what we depend on comes from our own environment
    }
    assert runner.run("bash ci/attention.sh prepare") == 0, runner.printed
    folders = {"base": runner.folder / ".attention" / "base", "head": runner.folder}
    for side, folder in folders.items():
        prefix = (folder / "prefix.txt").read_text(encoding="utf-8").strip()
        assert prefix == str(runner.folder / ".attention" / f"env-{side}")
        assert "compare" in (folder / "help.txt").read_text(encoding="utf-8")
    assert "# head" not in (folders["base"] / "mymodel.py").read_text(encoding="utf-8")
