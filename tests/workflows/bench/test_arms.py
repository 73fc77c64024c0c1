"""The arms of a comparison: how many, their names, and which cannot run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.bench import arms as bench_arms
from sdpa_onnx.workflows.bench.arms import ArmChoice, ArmSet, find_baseline, make_contest
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm
from tests.sweep.fakes import Faulty, Refusing, plant

_A, _B = Path("a.onnx"), Path("b.onnx")
_PREPACKING = "session.disable_prepacking"


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms are written without probing the runtime, which takes seconds and is tested with `convert`."""

    def plain(runtime: Runtime, form: Form) -> FixedForm:
        return FixedForm(form=form, options=LowerOptions())

    monkeypatch.setattr(bench_arms, "RuntimeForm", plain)
    monkeypatch.setattr(bench_arms, "package_version", lambda python, _: f"1.{python.name}")


@pytest.fixture
def contest(bare_model: OnnxModel, decomposed_model: OnnxModel) -> Callable[..., ArmSet]:
    """Makes the arms of one file, or of two with `files`."""

    def make(*, files: int = 1, **choice: object) -> ArmSet:
        models = dict(list({_A: bare_model, _B: decomposed_model}.items())[:files])
        return make_contest(models, ArmChoice(patience_seconds=None, **choice))  # type: ignore[arg-type]

    return make


def _names(contest: ArmSet) -> list[str]:
    return [arm.name for arm in contest.arms]


_NAMED = {
    "usual": ({}, ["ort-cpu", "torch"]),
    "one": ({"runtimes": ["ort-cpu"]}, ["ort-cpu"]),
    "files": ({"files": 2}, ["ort-cpu a.onnx", "ort-cpu b.onnx", "torch"]),
    "files-alone": ({"files": 2, "runtimes": ["ort-cpu"]}, ["a.onnx", "b.onnx"]),
    "forms": ({"runtimes": ["ort-cpu"], "forms": ["as-is", "blocked"]}, ["as-is", "blocked"]),
    "one-form": ({"forms": ["blocked"]}, ["ort-cpu", "torch"]),
    "files-forms": (
        {"runtimes": ["ort-cpu"], "files": 2, "forms": ["as-is", "blocked"]},
        ["a.onnx as-is", "a.onnx blocked", "b.onnx as-is", "b.onnx blocked"],
    ),
    "threads": ({"threads": (1, 2)}, ["ort-cpu 1 thread", "ort-cpu 2 threads", "torch 1 thread", "torch 2 threads"]),
    "options": (
        {"options": [{_PREPACKING: "1"}]},
        ["ort-cpu", "ort-cpu disable_prepacking=1", "torch"],
    ),
    "options-of-one-word": (
        {"runtimes": ["ort-cpu"], "options": [{"a.x": "1"}, {"b.x": "1", "y": "2"}]},
        ["ort-cpu", "ort-cpu a.x=1", "ort-cpu b.x=1,y=2"],
    ),
    "forms-options": (
        {"runtimes": ["ort-cpu"], "forms": ["as-is", "blocked"], "options": [{_PREPACKING: "1"}]},
        ["as-is", "as-is disable_prepacking=1", "blocked", "blocked disable_prepacking=1"],
    ),
}


@pytest.mark.parametrize(("choice", "names"), _NAMED.values(), ids=_NAMED)
def test_names_tell_what_differs(contest: Callable[..., ArmSet], choice: dict[str, object], names: list[str]) -> None:
    """Names are short and unique, without what all arms share; torch has one arm per thread count."""
    found = contest(**choice)
    assert _names(found) == names
    assert len(set(names)) == len(names)


def test_files_of_one_name(bare_model: OnnxModel, decomposed_model: OnnxModel) -> None:
    """Files of one name in two folders are distinguished by their paths."""
    models = {Path("one/m.onnx"): bare_model, Path("two/m.onnx"): decomposed_model}
    assert _names(make_contest(models, ArmChoice(runtimes=["ort-cpu"]))) == ["one/m.onnx", "two/m.onnx"]


def test_arms_have_the_requested_settings(contest: Callable[..., ArmSet]) -> None:
    """Threads, settings and form of an arm are those of its name."""
    found = contest(runtimes=["ort-cpu"], forms=["blocked"], options=[{_PREPACKING: "1"}], threads=(2,))
    usual, other = found.arms
    assert (usual.form, usual.threads, usual.options) == ("blocked", 2, {})
    assert (other.form, other.threads, other.options) == ("blocked", 2, {_PREPACKING: "1"})


def test_environments_are_arms_beside_ours(contest: Callable[..., ArmSet]) -> None:
    """An environment is named by its version of the runtime; torch, which needs our package, runs in ours only."""
    found = contest(pythons=[Path("old/bin/31"), Path("new/bin/33")])
    ours, old, new, torch = found.arms
    assert ours.name.startswith("ort-cpu 1.")
    assert (ours.python, ours.environment) == (None, "")
    assert (old.name, old.python, old.environment) == ("ort-cpu 1.31", Path("old/bin/31"), "1.31")
    assert new.name == "ort-cpu 1.33"
    assert (torch.name, torch.python) == ("torch", None)


def test_what_no_arm_has_twice(contest: Callable[..., ArmSet]) -> None:
    """A form or runtime that is given twice is one arm."""
    assert _names(contest(runtimes=["ort-cpu", "ort-cpu"], forms=["blocked", "blocked"])) == ["ort-cpu"]


def test_refusing_runtime_is_a_record(monkeypatch: pytest.MonkeyPatch, contest: Callable[..., ArmSet]) -> None:
    """A runtime that does not support a file is reported with its reason; the other arms run."""
    plant(monkeypatch, Refusing(name="fake"))
    found = contest(runtimes=["ort-cpu", "fake"])
    assert _names(found) == ["ort-cpu"]
    (refused,) = found.refused
    assert (refused.arm, refused.runtime, refused.outcome) == ("fake", "fake", Outcome.UNSUPPORTED)
    assert refused.reason == "fake has no such kernel"


def test_nothing_can_be_timed(monkeypatch: pytest.MonkeyPatch, contest: Callable[..., ArmSet]) -> None:
    """If no arm is left the reason is the error."""
    plant(monkeypatch, Refusing(name="fake"))
    with pytest.raises(PlanError) as caught:
        contest(runtimes=["fake"])
    assert str(caught.value) == "No runtime supports these models: fake has no such kernel"


def test_form_that_cannot_be_written(bare_model: OnnxModel) -> None:
    """GroupQueryAttention cannot have values of another width: reported with the reason; the other form is timed."""
    found = make_contest(
        {_A: bare_model}, ArmChoice(runtimes=["ort-cpu"], forms=["as-is", "ort-gqa"], patience_seconds=None)
    )
    assert _names(found) == ["as-is"]
    (refused,) = found.refused
    assert (refused.arm, refused.form, refused.outcome) == ("ort-gqa", "ort-gqa", Outcome.UNSUPPORTED)
    assert refused.reason


def test_torch_that_does_not_know_the_model(module_model: OnnxModel, tmp_path: Path) -> None:
    """By default torch is an arm if it can run; if it cannot, nothing is reported."""
    from sdpa_onnx.graph.model import load_model

    path = module_model.save(tmp_path / "m.onnx")
    found = make_contest({path: load_model(path)}, ArmChoice())
    assert (_names(found), found.refused) == (["ort-cpu"], ())


def _refused(contest: Callable[..., ArmSet], **choice: object) -> str:
    with pytest.raises(PlanError) as caught:
        contest(**choice)
    return str(caught.value)


def test_too_many_arms(contest: Callable[..., ArmSet]) -> None:
    """Thirteen are refused before any form is written, twelve are accepted."""
    assert _refused(contest, files=2, forms=["as-is", "blocked"], threads=(1, 2, 3)) == (
        "These are 15 arms; one comparison takes at most 12. Compare fewer things at once."
    )
    assert len(contest(files=2, runtimes=["ort-cpu"], forms=["as-is", "blocked"], threads=(1, 2, 3)).arms) == 12


def test_runtime_for_agreement_only(contest: Callable[..., ArmSet]) -> None:
    """A runtime that is slow by design is not timed."""
    assert _refused(contest, runtimes=["onnx-reference"]) == (
        "Runtime 'onnx-reference' is for agreement only. Time another one."
    )


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (
            {"options": [{"a": "1"}]},
            "--option works with openvino, ort-cpu, ort-cuda and ort-plugin only. Time one of them too.",
        ),
        ({"pythons": [Path("x")]}, "--python does not work with torch. Time another runtime too, such as ort-cpu."),
    ],
    ids=["option", "python"],
)
def test_what_torch_cannot_have(contest: Callable[..., ArmSet], choice: dict[str, object], sentence: str) -> None:
    """Settings and environments without a runtime that supports them would have no effect."""
    assert _refused(contest, runtimes=["torch"], **choice) == sentence


def test_setting_that_decides_the_threads(contest: Callable[..., ArmSet]) -> None:
    """Threads are chosen by their own option, so that they are recorded."""
    assert _refused(contest, options=[{"intra_op_num_threads": "2"}]) == (
        "'intra_op_num_threads' is no option of an arm. Name the runtime and the threads instead."
    )


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (None, "torch"),
        ("ort-cpu b.onnx", "ort-cpu b.onnx"),
        ("ort-cpu", "ort-cpu a.onnx"),
        ("b.onnx", "ort-cpu b.onnx"),
        ("decomposed", "ort-cpu b.onnx"),
    ],
)
def test_baseline(contest: Callable[..., ArmSet], requested: str | None, found: str) -> None:
    """Torch, or the arm with this name or this word in it: runtime, file or form."""
    assert find_baseline(contest(files=2).arms, requested) == found


def test_baseline_without_torch(contest: Callable[..., ArmSet]) -> None:
    """Without torch the first arm is the baseline."""
    assert find_baseline(contest(files=2, runtimes=["ort-cpu"]).arms, None) == "a.onnx"


def test_baseline_that_is_no_arm(contest: Callable[..., ArmSet]) -> None:
    """The error for a wrong name lists the right ones; a part of a word does not match."""
    for requested in ("openvino", "ort"):
        with pytest.raises(PlanError) as caught:
            find_baseline(contest().arms, requested)
        assert str(caught.value) == f"There is no arm '{requested}' to be the baseline. Arms: ort-cpu, torch."


def test_fake_runtime_in_our_process(monkeypatch: pytest.MonkeyPatch, contest: Callable[..., ArmSet]) -> None:
    """A third-party runtime has no settings, so it is one arm next to those of ort-cpu."""
    plant(monkeypatch, Faulty(name="mine"))
    assert _names(contest(runtimes=["ort-cpu", "mine"], options=[{_PREPACKING: "1"}])) == [
        "ort-cpu",
        "ort-cpu disable_prepacking=1",
        "mine",
    ]
