"""One suite that every runtime must pass; a runtime that is missing here is skipped, with its reason."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Supported, Unsupported, get_runtime
from tests.runtimes.models import LIMITS, PROBLEMS, Array, Problem, draw, formula, model

RUNTIMES = ("ort-cpu", "ort-cuda", "torch", "onnx-reference", "openvino")
PLAIN = PROBLEMS["plain"]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """One runtime, or a skip with the reason it gives itself."""
    found = get_runtime(request.param)
    answer = found.available()
    if isinstance(answer, Unsupported):
        pytest.skip(answer.reason)
    return found


def run_once(runtime: Runtime, problem: Problem, feeds: dict[str, Array]) -> Array:
    with runtime.load(model(problem), LoadOptions()) as session:
        return session.run(feeds)["Y"]


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_outputs_are_right(runtime: Runtime, problem: Problem) -> None:
    """Every case agrees with the float64 formula, in the case's own type."""
    assert runtime.supports(model(problem)) == Supported()
    feeds = draw(problem)
    actual = run_once(runtime, problem, feeds)
    expected = formula(problem, feeds)
    assert actual.dtype == np.dtype(problem.dtype)
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(np.float64) - expected).max() < LIMITS[problem.dtype]


def planted(feeds: dict[str, Array], fault: str) -> dict[str, Array]:
    """What a runtime would see if it mixed up heads, keys or masks."""
    match fault:
        case "kv-heads-swapped":
            return {**feeds, "K": feeds["K"][:, ::-1], "V": feeds["V"][:, ::-1]}
        case "keys-shifted":
            return {**feeds, "K": np.roll(feeds["K"], 1, axis=2)}
        case _:
            return {**feeds, "attn_mask": np.ones_like(feeds["attn_mask"])}


@pytest.mark.parametrize(
    ("name", "fault"),
    [("gqa-8-2", "kv-heads-swapped"), ("f16", "keys-shifted"), ("bool-mask", "mask-ignored")],
)
def test_the_limits_see_a_planted_fault(name: str, fault: str) -> None:
    """The limits of this suite refuse a fault of each kind, so that passing means something."""
    problem = PROBLEMS[name]
    feeds = draw(problem)
    wrong = formula(problem, planted(feeds, fault))
    assert np.abs(wrong - formula(problem, feeds)).max() > 10 * LIMITS[problem.dtype]


def test_a_fully_masked_row_is_zero(runtime: Runtime) -> None:
    """A query that may attend to no key gives zeros, not NaN and not the mean of the values."""
    problem = PROBLEMS["bool-mask"]
    actual = run_once(runtime, problem, draw(problem))
    assert not actual[:, :, -1].any()
    assert actual[:, :, 0].any()


def test_bfloat16(runtime: Runtime) -> None:
    """bfloat16 is either refused in words or right."""
    problem = Problem(dtype="bfloat16")
    answer = runtime.supports(model(problem))
    if isinstance(answer, Unsupported):
        assert answer.reason == "ort-cpu has no bfloat16 kernel for Attention"
        return
    feeds = draw(problem)
    actual = run_once(runtime, problem, feeds)
    assert actual.dtype.name == "bfloat16"
    assert np.abs(actual.astype(np.float64) - formula(problem, feeds)).max() < LIMITS["bfloat16"]


def test_a_second_run_leaves_the_first_result_alone(runtime: Runtime) -> None:
    """Outputs are fresh arrays, not views into memory that the next run overwrites."""
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        first = session.run(draw(PLAIN, seed=1))["Y"]
        kept = first.copy()
        second = session.run(draw(PLAIN, seed=2))["Y"]
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)


def test_lengths_may_change_between_runs(runtime: Runtime) -> None:
    """One session serves several batch sizes and lengths."""
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        for q_seq_len, kv_seq_len, batch_size in ((1, 1, 1), (3, 9, 2), (6, 2, 3)):
            problem = replace(PLAIN, q_seq_len=q_seq_len, kv_seq_len=kv_seq_len)
            feeds = draw(problem, batch_size=batch_size)
            error = session.run(feeds)["Y"].astype(np.float64) - formula(problem, feeds)
            assert np.abs(error).max() < LIMITS["float32"]


def test_inputs_that_numpy_lays_out_otherwise(runtime: Runtime) -> None:
    """Strided, reversed and read-only arrays are read by value."""
    feeds = draw(PLAIN)
    odd = {name: np.flip(np.asfortranarray(np.flip(array, axis=2)), axis=2) for name, array in feeds.items()}
    for array in odd.values():
        array.flags.writeable = False
    assert np.array_equal(run_once(runtime, PLAIN, odd), run_once(runtime, PLAIN, feeds))


@pytest.mark.parametrize("name", ["plain", "opset25", "f16"])
def test_a_bound_run_equals_run(runtime: Runtime, name: str) -> None:
    """What is timed computes what is judged, and reads its inputs anew in each call."""
    problem = PROBLEMS[name]
    feeds = draw(problem)
    with runtime.load(model(problem), LoadOptions()) as session:
        bound: Any = session.bind(feeds)
        assert bound() is None
        first = bound.outputs()["Y"]
        assert np.array_equal(first, session.run(feeds)["Y"])
        assert bound() is None
        assert np.array_equal(first, bound.outputs()["Y"])
        assert first is not bound.outputs()["Y"]


def test_two_bound_runs_do_not_share_memory(runtime: Runtime) -> None:
    """Interleaved bound runs of one session keep their own outputs."""
    one, two = draw(PLAIN, seed=1), draw(PLAIN, seed=2)
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        first: Any = session.bind(one)
        second: Any = session.bind(two)
        first()
        second()
        assert np.array_equal(first.outputs()["Y"], session.run(one)["Y"])
        assert np.array_equal(second.outputs()["Y"], session.run(two)["Y"])


BAD_FEEDS: dict[str, tuple[Callable[[dict[str, Array]], dict[str, Array]], str]] = {
    "missing": (
        lambda feeds: {"Q": feeds["Q"]},
        "got no array for 'K', 'V'; the model takes 'Q', 'K', 'V'.",
    ),
    "unknown": (
        lambda feeds: {**feeds, "mask": feeds["Q"]},
        "got an array for 'mask'; the model takes 'Q', 'K', 'V'.",
    ),
    "dtype": (
        lambda feeds: {**feeds, "V": feeds["V"].astype(np.float64)},
        "got float64 for input 'V'; the model takes float32.",
    ),
    "rank": (
        lambda feeds: {**feeds, "K": feeds["K"][0]},
        "got shape (2, 5, 8) for input 'K'; the model takes (batch, 2, kv_len, 8).",
    ),
    "width": (
        lambda feeds: {**feeds, "K": feeds["K"][..., :7]},
        "got shape (2, 2, 5, 7) for input 'K'; the model takes (batch, 2, kv_len, 8).",
    ),
}


@pytest.mark.parametrize("call", ["run", "bind"])
@pytest.mark.parametrize(("spoil", "text"), BAD_FEEDS.values(), ids=BAD_FEEDS.keys())
def test_bad_inputs_are_refused(
    runtime: Runtime, spoil: Callable[[dict[str, Array]], dict[str, Array]], text: str, call: str
) -> None:
    """A wrong name, type, rank or fixed size is refused in the same words by every runtime."""
    with runtime.load(model(PLAIN), LoadOptions()) as session, pytest.raises(SessionError) as caught:
        getattr(session, call)(spoil(draw(PLAIN)))
    assert str(caught.value) == f"{runtime.name} {text}"


@pytest.mark.parametrize("call", ["run", "bind"])
def test_sizes_that_do_not_fit_each_other_are_refused(runtime: Runtime, call: str) -> None:
    """A fault that only the runtime can see is an error of ours, with the cause kept."""
    feeds = draw(PLAIN)
    feeds["V"] = feeds["V"][:, :, :3]
    with runtime.load(model(PLAIN), LoadOptions()) as session, pytest.raises(SessionError) as caught:
        getattr(session, call)(feeds)
    assert str(caught.value).startswith(f"{runtime.name} failed")
    assert "onnxruntime_src" not in str(caught.value)
    # These two do not look at the sizes, so there the door refuses and there is no cause.
    assert (caught.value.__cause__ is None) == (runtime.name in ("torch", "openvino"))


def test_a_closed_session_refuses(runtime: Runtime) -> None:
    """After its with block a session says that it is closed."""
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        pass
    with pytest.raises(SessionError) as caught:
        session.run(draw(PLAIN))
    assert str(caught.value) == f"The {runtime.name} session is closed. Use it inside its with block."


def test_what_ran_is_said(runtime: Runtime) -> None:
    """After a run the report has at least one provider, counted nodes and the declared arithmetic."""
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        session.run(draw(PLAIN))
        report = session.ran()
    assert report.precision == "float32"
    assert sum(report.providers.values()) >= 1
    assert sum(report.node_counts.values()) >= 1
    assert report.warnings == tuple(f"{name} was expanded into {n} nodes." for name, n in report.expanded.items())
    assert (report.expanded == {}) == (runtime.name != "openvino")


WINDOW = Problem(opset=25, is_causal=True, q_seq_len=6, kv_seq_len=6, attributes={"left_window_size": 1})
NO_KEYS = replace(PLAIN, kv_seq_len=0)


def verdict_on(runtime: Runtime, problem: Problem) -> tuple[Array, Verdict]:
    """What a runtime gives, and what the judge says of it at the runtime's declared arithmetic."""
    loaded, feeds = model(problem), draw(problem)
    with runtime.load(loaded, LoadOptions()) as session:
        actual = session.run(feeds)["Y"]
        precision = find_precision(session.ran().precision)
    inputs = AttentionInputs(query=feeds["Q"], key=feeds["K"], value=feeds["V"])
    return actual, judge(expect(loaded.sites[0].spec, inputs, precision=precision), actual).verdict


def test_a_window_is_kept_or_judged_wrong(runtime: Runtime) -> None:
    """Whoever ignores left_window_size (OpenVINO 2026.4.1 does) is judged wrong, whoever keeps it is not."""
    feeds = draw(WINDOW)
    try:
        actual, verdict = verdict_on(runtime, WINDOW)
    except SessionError:
        return  # refused in words, as onnxruntime before 1.32 does
    kept = np.abs(actual - formula(WINDOW, feeds)).max() < LIMITS["float32"]
    ignored = np.abs(actual - formula(replace(WINDOW, attributes={}), feeds)).max() < LIMITS["float32"]
    assert (kept, ignored) in ((True, False), (False, True))
    assert verdict is (Verdict.OK if kept else Verdict.WRONG)


def test_no_keys_give_zeros_or_are_refused_or_judged_wrong(runtime: Runtime) -> None:
    """Whoever gives memory that nobody wrote (OpenVINO 2026.4.1 does) is judged wrong."""
    try:
        actual, verdict = verdict_on(runtime, NO_KEYS)
    except SessionError:
        return  # refused in words
    assert verdict is (Verdict.WRONG if np.nan_to_num(actual, nan=1.0).any() else Verdict.OK)


def test_nothing_is_printed(runtime: Runtime, capfd: pytest.CaptureFixture[str]) -> None:
    """A load, a run, a refusal and the report leave stdout to the results, at the level of the file too."""
    broken = model(replace(PLAIN, attributes={"q_num_heads": 3}))
    feeds = draw(PLAIN)
    with runtime.load(model(PLAIN), LoadOptions()) as session:
        session.run(feeds)
        session.ran()
        with pytest.raises(SessionError):
            session.run({**feeds, "V": feeds["V"][:, :, :3]})
    with contextlib.suppress(SessionError), runtime.load(broken, LoadOptions()) as session:
        session.run(feeds)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("optimise", [True, False])
def test_optimisation_changes_no_result(runtime: Runtime, optimise: bool) -> None:
    """Every runtime takes the option, and the numbers stay right."""
    problem = PROBLEMS["bool-mask"]
    feeds = draw(problem)
    with runtime.load(model(problem), LoadOptions(optimise=optimise)) as session:
        actual = session.run(feeds)["Y"]
    assert np.abs(actual - formula(problem, feeds)).max() < LIMITS["float32"]


def test_the_version_names_the_package(runtime: Runtime) -> None:
    """The version is a package name and a number, for the record."""
    package, number = runtime.version().split(" ")
    assert package in {"onnx", "onnxruntime", "openvino", "torch"}
    assert number[0].isdigit()
