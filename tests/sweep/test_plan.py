"""The jobs of a suite: order, names that stay, nothing twice."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.sweep.job_text import job_kind
from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, JobKind, TimingJob, job_id, plan
from sdpa_onnx.sweep.suite import Suite, load_suite
from tests.conftest import GoldenCheck
from tests.sweep.suites import TINY, suite_of, write_suite


def test_exports_first_then_agreement_before_timing(tmp_path: Path) -> None:
    """Graphs come first; for each case its checks come before its times."""
    jobs = plan(suite_of(tmp_path))
    assert [type(job).__name__ for job in jobs] == ["ExportJob"] * 2 + ["AgreementJob", "AgreementJob", "TimingJob"] * 2
    assert [job.runtime for job in jobs if isinstance(job, AgreementJob)] == ["ort-cpu", "torch"] * 2
    assert {job.case.spec for job in jobs[2:5] if not isinstance(job, ExportJob)} == {jobs[2].model.spec}  # type: ignore[union-attr]


def test_ids_stay(tmp_path: Path, golden: GoldenCheck) -> None:
    """A job keeps its name over releases, or an old run could not be resumed or compared."""
    text = "".join(f"{job_id(job)} {type(job).__name__}\n" for job in plan(suite_of(tmp_path)))
    golden("tiny_plan.txt", text)


def test_ids_are_the_same_in_another_process(tmp_path: Path) -> None:
    """Nothing of the process enters a name, not even its hash seed."""
    path = write_suite(tmp_path)
    program = (
        "import sys; from sdpa_onnx.sweep.plan import job_id, plan; from sdpa_onnx.sweep.suite import load_suite\n"
        "print(*map(job_id, plan(load_suite(sys.argv[1]))))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [job_id(job) for job in plan(load_suite(str(path)))]


@pytest.mark.parametrize("name", ["tiny", "quick"])
def test_no_job_twice(tmp_path: Path, name: str) -> None:
    """Two jobs never share a name, so that each is done once."""
    suite = suite_of(tmp_path) if name == "tiny" else load_suite(name)
    names = [job_id(job) for job in plan(suite)]
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("opsets = [23]", "opsets = [18]"),
        ("spreads = [1.0]", "spreads = [2.0]"),
        ("q_seq_len = 16", "q_seq_len = 17"),
        ("head_dim = 8", "head_dim = 16"),
        ('name = "tiny"', 'name = "tiny"\nseed = 1'),
        ('name = "tiny"', 'name = "tiny"\nthreads = 2'),
    ],
)
def test_what_decides_a_result_decides_the_id(tmp_path: Path, old: str, new: str) -> None:
    """Another opset, spread, size, width, seed or thread count is another agreement job."""
    first, second = (
        {job_id(job) for job in plan(suite_of(tmp_path, text)) if isinstance(job, AgreementJob)}
        for text in (TINY, TINY.replace(old, new))
    )
    assert old in TINY
    assert not first & second


def test_name_of_the_suite_decides_nothing(tmp_path: Path) -> None:
    """Renaming a suite keeps every job."""
    first, second = (
        [job_id(job) for job in plan(suite_of(tmp_path, text))]
        for text in (TINY, TINY.replace('name = "tiny"', 'name = "other"'))
    )
    assert first == second


def test_torch_is_judged_once_whatever_the_opsets(tmp_path: Path) -> None:
    """torch runs the module, which has no opset; a graph is judged at each."""
    jobs = plan(suite_of(tmp_path, TINY.replace("[23]", "[18, 23, 24]")))
    judged = [(job.runtime, job.model.opset) for job in jobs if isinstance(job, AgreementJob)][:4]
    assert judged == [("ort-cpu", 18), ("ort-cpu", 23), ("ort-cpu", 24), ("torch", 24)]
    assert [len(job.models) for job in jobs if isinstance(job, TimingJob)] == [3, 3]


def test_module_is_not_judged_in_torch(tmp_path: Path) -> None:
    """A module's attentions cannot be tapped in torch: it is the yardstick of the module's end."""
    text = TINY.replace('"sdpa"', '"encoder-self"').replace("is_causal = [false, true]\n", "")
    runtimes = [job.runtime for job in plan(suite_of(tmp_path, text)) if isinstance(job, AgreementJob)]
    assert runtimes == ["ort-cpu"]


def test_nothing_is_timed_without_timing(tmp_path: Path) -> None:
    """A suite without `timing` only exports and judges."""
    jobs = plan(suite_of(tmp_path, TINY.replace('timing = ["ort-cpu", "torch"]\n', "")))
    assert not [job for job in jobs if isinstance(job, TimingJob)]


def test_probes_are_asked_once_of_each_graph_and_runtime(tmp_path: Path) -> None:
    """Structure does not depend on the size, so only the first case of a graph is probed; torch has one graph only."""
    text = TINY.replace("probes = false", "probes = true").replace("opsets = [23]", "opsets = [18, 23]")
    jobs = plan(suite_of(tmp_path, text.replace("is_causal = [", "kv_seq_len = [8, 16, 24]\nis_causal = [")))
    judged = [job for job in jobs if isinstance(job, AgreementJob)]
    asked = [(job.model, job.runtime) for job in judged if job.probes]
    assert len(asked) == len(set(asked))
    assert set(asked) == {(job.model, job.runtime) for job in judged}
    # Two graphs at two opsets on ort-cpu, and both modules in torch; three lengths of each.
    assert (len(asked), len(judged)) == (6, 18)
    first = {(job.model, job.runtime): job for job in reversed(judged)}
    assert all(job.probes for job in first.values())


def test_no_probes_where_none_are_wanted(tmp_path: Path) -> None:
    """`probes = false` leaves the ladder alone."""
    assert not [job for job in plan(suite_of(tmp_path)) if isinstance(job, AgreementJob) and job.probes]


def test_forms_are_further_arms() -> None:
    """A form is exported once, judged where it is timed and not on torch, and added to the usual arms."""
    jobs = plan(msgspec.toml.decode(_FORMS, type=Suite))
    exports = [(job.model.opset, job.model.form) for job in jobs if isinstance(job, ExportJob)]
    assert exports == [(18, None), (23, None), (23, Form.BLOCKED)]
    judged = {(job.model.form, job.runtime) for job in jobs if isinstance(job, AgreementJob)}
    assert judged == {
        (None, "ort-cpu"),
        (None, "torch"),
        (None, "onnx-reference"),
        (Form.BLOCKED, "ort-cpu"),
    }
    (timing,) = [job for job in jobs if isinstance(job, TimingJob)]
    assert [key.form for key in timing.models] == [None, None, Form.BLOCKED]


_FORMS = """
name = "forms"
agreement = ["ort-cpu", "torch", "onnx-reference"]
timing = ["ort-cpu", "torch"]
[[vary]]
targets = ["sdpa"]
forms = ["blocked"]
"""


_REFERENCE = """
name = "reference"
agreement = ["ort-cpu", "onnx-reference"]
reference_seq_len = 64
[[vary]]
targets = ["sdpa"]
q_seq_len = [16, 128, 512]
kv_seq_len = [64, 512]
"""


def _judged(text: str, runtime: str) -> list[AgreementJob]:
    jobs = plan(msgspec.toml.decode(text, type=Suite))
    return [job for job in jobs if isinstance(job, AgreementJob) and job.runtime == runtime]


def test_reference_runtime_judges_a_fraction_of_long_lengths() -> None:
    """All lengths are divided by one number, so that longer stays longer; short cases stay, and nothing is twice."""
    sizes = [(job.case.q_seq_len, job.case.kv_seq_len) for job in _judged(_REFERENCE, "onnx-reference")][::2]
    assert sizes == [(16, 64), (2, 64), (64, 32), (64, 8), (64, 64)]


def test_reference_size_changes_no_other_job() -> None:
    """Other runtimes judge every case at its own size, under the same id as without a reference size."""
    full = _REFERENCE.replace("reference_seq_len = 64\n", "")
    assert [*map(job_id, _judged(_REFERENCE, "ort-cpu"))] == [*map(job_id, _judged(full, "ort-cpu"))]
    assert len(_judged(full, "onnx-reference")) == 12


def test_reference_runtime_is_probed_once_per_graph() -> None:
    """A reduced case that several cases share keeps its probes."""
    judged = _judged(_REFERENCE, "onnx-reference")
    assert [job.probes for job in judged] == [True, True, *[False] * (len(judged) - 2)]


def test_smoke_has_every_kind_of_job_and_the_three_forms() -> None:
    """The suite for a first try exports, judges, times and measures saturation, causal or not, and one module."""
    jobs = plan(load_suite("smoke"))
    assert {job_kind(job) for job in jobs} == set(JobKind)
    exports = [job.model for job in jobs if isinstance(job, ExportJob)]
    assert {"decoder-self", "sdpa"} == {model.target for model in exports}
    assert {Form.DECOMPOSED, Form.BLOCKED, None} == {model.form for model in exports}
    assert {model.spec.is_causal for model in exports if model.spec is not None} == {False, True}


def test_first_look_changes_the_id_of_a_timing_only_where_it_is_set(tmp_path: Path) -> None:
    """Timings of suites without a first look keep the ids of earlier versions."""
    looked = TINY.replace("launches = 1", "launches = 3\nfirst_launches = 2")
    plain = TINY.replace("launches = 1", "launches = 3")
    first, second = ({job_id(job) for job in plan(suite_of(tmp_path, text))} for text in (looked, plain))
    assert len(first - second) == len(second - first) == 2
