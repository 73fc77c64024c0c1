"""The command `saturation`: output, exit codes, misuse."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from sdpa_onnx.cli.saturation import saturation

# Above d_k 1024 nothing is exported, so these tests are fast.
_QUICK = ["--head-dim", "1025", "--kv-seq-len", "16", "--draws", "8", "--rows", "64", "--no-module"]

app = typer.Typer(add_completion=False)
app.command()(saturation)


def run(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*_QUICK, *options])
    return result.exit_code, result.stdout


def test_table_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict, a row for each rule, what it buys; with --verbose every claim; with --quiet the verdict."""
    monkeypatch.setenv("COLUMNS", "120")  # the width of the terminal, which the environment of a test may set
    code, text = run()
    assert code == 0
    verdict = text.splitlines()[0]
    assert re.fullmatch(r"All 2 cells match their exact prediction \(largest \|z\| \d\.\d; limit 4\)\.", verdict)
    assert "\n  With 16 keys (sdpa, components of variance 1, float32)\n" in text
    assert "\n  scale none:\n  1025" in text
    claim = "\n- Variance of q.k: "
    assert claim not in text
    assert claim in run("--verbose")[1]
    assert run("--quiet")[1] == f"{verdict}\n"


def test_json() -> None:
    """Only records are printed."""
    code, text = run("--json", "--scale-rule", "1/d_k", "--sigma", "2")
    (record,) = json.loads(text)
    assert code == 0
    assert (record["kind"], record["scale_rule"], record["sigma"]) == ("saturation", "1/d_k", 2.0)
    assert record["measures"]["beta"]["predicted"] == pytest.approx(4 / 1025**0.5)


@pytest.mark.parametrize("options", [("--draws", "3"), ("--scale-rule", "1/d"), ("--sigma", "0")])
def test_misuse(options: tuple[str, str]) -> None:
    """Exit code 2."""
    assert run(*options)[0] == 2
