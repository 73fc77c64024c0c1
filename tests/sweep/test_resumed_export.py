"""A user's module that changes between a killed run and --resume, with real exports: no record is of the old module."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Record, Subject
from sdpa_onnx.sweep.store import read_run
from tests.sweep.process import sdpa_onnx, start, wait_until

pytestmark = pytest.mark.slow

_MODULE = """
import torch

class Model(torch.nn.Module):
    def forward(self, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

sample_inputs = (torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8))
"""
_TWICE = _MODULE.replace(
    "        return",
    "        query = torch.nn.functional.scaled_dot_product_attention(query, key, value)\n        return",
)
_CHANGED, _OTHER = "mine.py:Model", "other.py:Model"
_SUITE = f"""
name = "t"
opsets = [23]
agreement = ["ort-cpu"]
spreads = [1.0]
probes = false

[base]
q_seq_len = 16

[[vary]]
targets = ["{_CHANGED}", "{_OTHER}"]
"""
_RUN = ("run", "suite.toml", "--out", "run", "--allow-code", "mine.py", "--allow-code", "other.py")


def _attentions(records: Iterable[Record], target: str) -> tuple[list[int], int]:
    """Attention nodes of each export of a module, and how many attentions its agreements judge."""
    mine = [record for record in records if record.target == target]
    exported = [record.nodes["Attention"] for record in mine if isinstance(record, ExportRecord)]
    judged = [record for record in mine if isinstance(record, AgreementRecord) and record.subject is Subject.ATTENTION]
    return exported, len({record.site for record in judged})


def test_only_cells_of_the_changed_module_run_again(tmp_path: Path) -> None:
    """The run is killed, the module gets a second attention, and only its export and its agreement run again."""
    assert _TWICE != _MODULE
    for name, text in (("mine.py", _MODULE), ("other.py", _MODULE), ("suite.toml", _SUITE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    process = start(*_RUN, cwd=tmp_path)
    run = tmp_path / "run"

    def is_under_way() -> bool:
        if not ((run / "run.json").exists() and (run / "records.jsonl").exists()):
            return False
        found = read_run(run)[1]
        return _attentions(found, _CHANGED) == ([1], 1) and _attentions(found, _OTHER)[0] == [1]

    wait_until(is_under_way, process)
    process.kill()
    process.communicate()
    before = read_run(run)[1]

    (tmp_path / "mine.py").write_text(_TWICE, encoding="utf-8")
    done = sdpa_onnx(*_RUN, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finished = len({record.job for record in before})
    assert (
        f"2 of {finished} finished cells run again, because mine.py changed since the run was started." in done.stderr
    )
    header, after = read_run(run)
    assert (header.is_finished, {record.outcome.value for record in after}) == (True, {"ok"})
    assert (_attentions(after, _CHANGED), _attentions(after, _OTHER)) == (([2], 2), ([1], 1))
    kept, others = ([one for one in records if one.target == _OTHER] for records in (before, after))
    assert others[: len(kept)] == kept
    assert len({record.cell for record in after}) == len(after)
    # Models are named by their contents: the old one is still that of the other module.
    models = {record.target: record.model for record in after if isinstance(record, ExportRecord)}
    assert models[_CHANGED] != models[_OTHER]
    assert all((run / model).exists() for model in models.values())
