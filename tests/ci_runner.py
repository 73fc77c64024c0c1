"""A scratch repository with the CI kit, in which the steps of its workflow files are run; judges nothing."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
KIT = ROOT / "docs" / "ci"

MODULE = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(64, 192)

    def attend(self, query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (one.transpose(1, 2) for one in self.joined(x).unflatten(2, (12, 16)).chunk(3, dim=2))
        return ATTENDED.transpose(1, 2).flatten(2)

    def sample_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(2, 16, 64),)
"""
ONCE = "self.attend(query, key, value)"
# The same result from twice the work: the heads the other way round, and back.
TWICE = f"(0.5 * ({ONCE} + self.attend(query.flip(1), key.flip(1), value.flip(1)).flip(1)))"


def module(*, scale: str = "0.25", attended: str = ONCE) -> str:
    """The user's module, right or with a fault."""
    return MODULE.replace("SCALE", scale).replace("ATTENDED", attended)


# A `gh` and a `curl` that write down what they are asked, and answer with what the test has put there.
FAKE_GH = """#!/bin/bash
printf '%s\\n' "$*" >>"$ASKED"
case "$*" in
  *--paginate*) cat "$COMMENTS" ;;
  *artifacts*) cat "$ARTIFACT" ;;
  *"run download"*) cp -r "$EARLIER/." "${@: -1}" ;;
esac
"""
FAKE_CURL = """#!/bin/bash
printf '%s\\n' "$*" >>"$ASKED"
case "$*" in
  *per_page*) cat "$COMMENTS" ;;
  *jobs/artifacts*) exit 22 ;;
esac
"""


@dataclass
class Runner:
    """What a CI system gives a job: a checkout, variables, and steps in order."""

    folder: Path
    variables: dict[str, str]
    ended: dict[str, int] = field(default_factory=dict)
    printed: str = ""

    @property
    def asked(self) -> list[str]:
        """What `gh` and `curl` were asked."""
        path = Path(self.variables["ASKED"])
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def summary(self) -> str:
        return Path(self.variables["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")

    def failures(self) -> set[str]:
        """Gates with a failed case in the JUnit file."""
        root = ET.parse(self.folder / "attention" / "gate.xml").getroot()  # noqa: S314 - our own text
        return {
            str(case.get("classname")).split(".")[1]
            for case in root.iter("testcase")
            if case.find("failure") is not None
        }

    def github(self, job: str) -> int:
        """Run every `run:` step of a job of the GitHub workflow; the exit code of the first that failed."""
        workflow = load("github.yml")
        failed = 0
        for step in workflow["jobs"][job]["steps"]:
            if "run" not in step or (failed and "cancelled()" not in step.get("if", "")):
                continue
            found = workflow["env"] | step.get("env", {}) | self.variables
            code = self.run(step["run"], {name: _filled(str(value)) for name, value in found.items()})
            self.ended[step["name"]] = code
            failed = failed or (0 if step.get("continue-on-error") else code)
        return failed

    def gitlab(self, job: str) -> int:
        """Run the script of a job of the GitLab file, then what follows it in any case."""
        described = load("gitlab.yml")
        found = described[".attention"]["variables"] | described[job].get("variables", {}) | self.variables
        code = 0
        for line in described[job]["script"]:
            code = code or self.run(line, found)
        for line in described[job].get("after_script", []):
            self.run(line, found)
        return code

    def run(self, script: str, variables: dict[str, str] | None = None) -> int:
        """One step, as GitHub starts it."""
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],  # noqa: S607
            cwd=self.folder,
            env=os.environ | (variables or self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.printed += done.stdout
        return done.returncode

    def commit(self, text: str) -> None:
        """A change to the user's module."""
        (self.folder / "mymodel.py").write_text(text, encoding="utf-8")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", "A change")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((KIT / name).read_text(encoding="utf-8"))
    return loaded


def _filled(text: str) -> str:
    """A value with what GitHub puts in place of its expressions."""
    contexts = {"github.token": "a-token", "github.event.pull_request.number": "7"}
    return re.sub(r"\$\{\{\s*([\w.]+)\s*\}\}", lambda found: contexts[found[1]], text)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()


def scratch_repository(tmp_path: Path) -> Runner:
    """A repository with the kit, committed; nothing is installed, for our own interpreter has everything."""
    folder, tools = tmp_path / "repository", tmp_path / "tools"
    (folder / "ci").mkdir(parents=True)
    shutil.copy(KIT / "attention.sh", folder / "ci")
    tools.mkdir()
    for name, text in (("gh", FAKE_GH), ("curl", FAKE_CURL)):
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    for name in ("comments", "artifact"):
        (tmp_path / name).write_text("", encoding="utf-8")
    variables = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "INSTALL": "",
        "TARGET": "mymodel.py:Block",
        "SIZES": "x_seq_len=128",
        "COMPARE": "--seconds 12",
        "GITHUB_REPOSITORY": "someone/something",
        "GITHUB_REF_NAME": "main",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "CI_API_V4_URL": "https://gitlab.example.org/api/v4",
        "CI_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_COMMIT_REF_NAME": "main",
        "CI_JOB_TOKEN": "a-job-token",
        "ASKED": str(tmp_path / "asked.txt"),
        "COMMENTS": str(tmp_path / "comments"),
        "ARTIFACT": str(tmp_path / "artifact"),
        "EARLIER": str(tmp_path / "earlier"),
    }
    git(folder, "init", "-q")
    found = Runner(folder, variables)
    found.commit(module())
    return found
