"""Every reading is the oracle with one rule changed; one-hot values show the visible keys."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend, head_blocks
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.faults.fault_kind import on_blocks
from sdpa_onnx.core.faults.planted_faults import right_output
from sdpa_onnx.core.faults.readings import READINGS, Reading, readings_for
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.attentions import CASES
from tests.core.by_name import find_reading
from tests.core.problems import BY_NAME, PROBLEMS

_NAMES = [reading.name for reading in READINGS]
_LEFT = [{"left_window": width, "is_causal": True} for width in (0, 1)]


def _read(reading: Reading, spec: AttentionSpec, inputs: AttentionInputs) -> np.ndarray:  # type: ignore[type-arg]
    right = {OutputRole.OUTPUT: attend(spec, inputs).output}
    return on_blocks(reading.blocks)(spec, inputs, right, np.random.default_rng(0))[OutputRole.OUTPUT]


def _seen(
    name: str, *, q_seq_len: int, kv_seq_len: int, past: int = 0, lengths: int | None = None, **spec: object
) -> str:
    """Who sees whom under a reading: a row of x and . per query."""
    total = kv_seq_len + past
    has_past = past > 0
    made = AttentionSpec(
        q_num_heads=1,
        kv_num_heads=1,
        head_dim=2,
        v_head_dim=total,
        has_past=has_past,
        mask="none" if lengths is None else "lengths",  # type: ignore[arg-type]
        **spec,  # type: ignore[arg-type]
    )
    value = np.eye(total)[None, None]
    inputs = AttentionInputs(
        query=np.zeros((1, 1, q_seq_len, 2)),
        key=np.ones((1, 1, kv_seq_len, 2)),
        value=value[:, :, past:],
        past_key=np.ones((1, 1, past, 2)) if has_past else None,
        past_value=value[:, :, :past] if has_past else None,
        nonpad_kv_seqlen=None if lengths is None else np.array([lengths]),
    )
    assert find_reading(name).applies(made)
    output = _read(find_reading(name), made, inputs)[0, 0]
    return " ".join("".join("x" if weight > 0 else "." for weight in row) for row in output)


@pytest.mark.parametrize(
    ("name", "sizes", "spec", "seen"),
    [
        ("causal-upper-left", {"q_seq_len": 2, "kv_seq_len": 2, "past": 2}, {"is_causal": True}, "x... xx.."),
        ("causal-upper-left", {"q_seq_len": 2, "kv_seq_len": 4, "lengths": 3}, {"is_causal": True}, "x... xx.."),
        ("causal-bottom-right", {"q_seq_len": 2, "kv_seq_len": 4}, {"is_causal": True}, "xxx. xxxx"),
        ("causal-bottom-right", {"q_seq_len": 1, "kv_seq_len": 3, "past": 1}, {"is_causal": True}, "xxxx"),
        ("causal-ignored", {"q_seq_len": 2, "kv_seq_len": 3}, {"is_causal": True}, "xxx xxx"),
        ("causal-one-query-sees-all", {"q_seq_len": 1, "kv_seq_len": 3, "past": 1}, {"is_causal": True}, "xxxx"),
        ("causal-one-query-sees-all", {"q_seq_len": 2, "kv_seq_len": 3}, {"is_causal": True}, "x.. xx."),
        ("causal-last-row-sees-all", {"q_seq_len": 3, "kv_seq_len": 4}, {"is_causal": True}, "x... xx.. xxxx"),
        ("causal-strict", {"q_seq_len": 3, "kv_seq_len": 3}, {"is_causal": True}, "... x.. xx."),
        ("causal-one-too-many", {"q_seq_len": 2, "kv_seq_len": 3}, {"is_causal": True}, "xx. xxx"),
        ("window-ignored", {"q_seq_len": 2, "kv_seq_len": 3}, {"left_window": 0, "right_window": 0}, "xxx xxx"),
        (
            "window-left-one-more",
            {"q_seq_len": 3, "kv_seq_len": 3},
            {"left_window": 0, "is_causal": True},
            "x.. xx. .xx",
        ),
        (
            "window-left-one-less",
            {"q_seq_len": 3, "kv_seq_len": 3},
            {"left_window": 1, "is_causal": True},
            "x.. .x. ..x",
        ),
        ("window-right-one-more", {"q_seq_len": 2, "kv_seq_len": 3}, {"right_window": 0}, "xx. xxx"),
        ("window-right-one-less", {"q_seq_len": 2, "kv_seq_len": 3}, {"right_window": 1}, "x.. xx."),
        ("padding-ignored", {"q_seq_len": 1, "kv_seq_len": 4, "lengths": 2}, {}, "xxxx"),
        ("padding-ignored", {"q_seq_len": 2, "kv_seq_len": 4, "lengths": 3}, {"right_window": 1}, "xxx. xxxx"),
        ("padding-left", {"q_seq_len": 1, "kv_seq_len": 4, "lengths": 3}, {}, ".xxx"),
        ("lengths-one-more", {"q_seq_len": 1, "kv_seq_len": 4, "lengths": 2}, {}, "xxx."),
        ("lengths-one-less", {"q_seq_len": 1, "kv_seq_len": 4, "lengths": 2}, {}, "x..."),
        ("last-key-missing", {"q_seq_len": 1, "kv_seq_len": 3, "lengths": 2}, {}, "x.."),
        ("first-key-missing", {"q_seq_len": 1, "kv_seq_len": 3}, {}, ".xx"),
        ("half-keys-missing", {"q_seq_len": 1, "kv_seq_len": 4}, {}, "xx.."),
        ("past-ignored", {"q_seq_len": 1, "kv_seq_len": 2, "past": 2}, {}, "..xx"),
        ("half-past-missing", {"q_seq_len": 1, "kv_seq_len": 1, "past": 3}, {}, "..xx"),
        ("past-after-new", {"q_seq_len": 1, "kv_seq_len": 2, "past": 1}, {"is_causal": True}, ".xx"),
        ("cache-off-by-one", {"q_seq_len": 1, "kv_seq_len": 1, "past": 2}, {}, "x.x"),
        ("first-value-zero", {"q_seq_len": 1, "kv_seq_len": 3}, {}, ".xx"),
    ],
)
def test_who_sees_whom(name: str, sizes: dict[str, int], spec: dict[str, object], seen: str) -> None:
    """Positions, windows, lengths and cache follow the changed rule of the reading."""
    assert _seen(name, **sizes, **spec) == seen  # type: ignore[arg-type]


@pytest.mark.parametrize("name", _NAMES)
def test_reading_differs_where_it_applies(name: str) -> None:
    """Each reading changes the output for some inputs of the specs that it applies to."""
    reading = find_reading(name)
    problems = [problem for problem in PROBLEMS if reading.applies(problem.case().spec)]
    cases = [replace(case, dtype=Dtype.FLOAT64) for case in CASES.values() if reading.applies(case.spec)]
    asked = itertools.chain(
        ((problem.case().spec, problem.inputs()) for problem in problems),
        ((case.spec, probe.draw(case, 1)) for case in cases for probe in probes_for(case.spec)),
    )
    assert any(
        not np.allclose(_read(reading, spec, inputs), attend(spec, inputs).output, equal_nan=False)
        for spec, inputs in asked
    )


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if not p.name.startswith("no-")], ids=lambda p: p.name)
def test_blocks_stand_in_the_oracle_order(problem: object) -> None:
    """A reading's blocks are those of the oracle, sampled queries too, so that a judge can compare them."""
    case, inputs = problem.case(), problem.inputs()  # type: ignore[attr-defined]
    for rows in (None, np.array([0, case.q_seq_len - 1])):
        places = [(block.batch, block.head, block.rows.tolist()) for block in head_blocks(case.spec, inputs, rows=rows)]
        for reading in readings_for(case.spec):
            blocks = reading.blocks(case.spec, inputs, rows=rows)
            assert [(block.batch, block.head, block.rows.tolist()) for block in blocks] == places


@pytest.mark.parametrize("name", ["heads-tiled", "softcap-after-mask", "masked-row-mean", "mask-transposed"])
def test_judge_accepts_a_reading(name: str) -> None:
    """An output that follows a reading agrees with that reading's own bound and not with the oracle's."""
    case = CASES["softcap-bool"]
    probe = "masked-rows" if name == "masked-row-mean" else "softcap-floor"
    inputs = next(probe_ for probe_ in probes_for(case.spec) if probe_.name == probe).draw(case, 1)
    if name in ("heads-tiled", "mask-transposed"):
        inputs = draw_inputs(case)
    reading, precision = find_reading(name), find_precision("float32")
    output = _read(reading, case.spec, inputs).astype(np.float32)
    own = expect(case.spec, inputs, precision=precision, blocks_of=reading.blocks)
    assert judge(own, output).verdict is Verdict.OK
    assert judge(expect(case.spec, inputs, precision=precision), output).verdict is Verdict.WRONG


def test_masked_row_readings() -> None:
    """A query without a visible key yields NaN, the mean or an unmasked row, and no other query changes."""
    problem = BY_NAME["bool-mask"]
    spec, inputs = problem.case().spec, problem.inputs()
    right = attend(spec, inputs).output
    assert not right[:, :, -1].any()
    for name, expected in (
        ("masked-row-nan", np.full_like(right[:, :, -1], np.nan)),
        ("masked-row-mean", inputs.value.astype(np.float64).mean(2)),
    ):
        read = _read(find_reading(name), spec, inputs)
        np.testing.assert_allclose(read[:, :, -1], expected, rtol=1e-12)
        np.testing.assert_array_equal(read[:, :, :-1], right[:, :, :-1])
    bare = replace(spec, mask="none")
    unmasked = attend(bare, replace(inputs, attn_mask=None)).output
    read = _read(find_reading("masked-row-unmasked"), spec, inputs)
    np.testing.assert_allclose(read[:, :, -1], unmasked[:, :, -1], rtol=1e-12)


def test_reading_leaves_its_arguments() -> None:
    """No reading writes into the inputs."""
    for problem in PROBLEMS:
        inputs, spec = problem.inputs(), problem.case().spec
        before = {name: array.tobytes() for name, array in inputs.named().items()}
        for reading in readings_for(spec):
            list(reading.blocks(spec, inputs))
        assert {name: array.tobytes() for name, array in inputs.named().items()} == before


def test_the_single_query_is_dated_with_and_without_a_past() -> None:
    """The text is shown for both kinds of case, so it must be true of both."""
    reading = find_reading("causal-one-query-sees-all")
    assert reading.applies(BY_NAME["causal"].case().spec)
    assert reading.applies(replace(BY_NAME["causal"].case().spec, has_past=True))
    assert reading.dated == (
        "onnxruntime's CPU kernel: without a past before onnxruntime PR 29050, after a past in 1.32.0"
    )


def test_three_dimensional_memory() -> None:
    """The 3-D layout read without a transpose is the same memory cut otherwise."""
    problem = BY_NAME["bsh"]
    spec, inputs = problem.case().spec, problem.inputs()
    read = _read(find_reading("layout-not-transposed"), spec, inputs)
    cut = {name: array.reshape(2, 2, -1, 5) for name, array in inputs.named().items()}
    plain = attend(replace(spec, layout="bnsh"), AttentionInputs(**cut)).output
    np.testing.assert_allclose(read, plain.transpose(0, 2, 1, 3).reshape(read.shape), rtol=1e-12)


def test_names_and_clauses() -> None:
    """Slugs are unique and file-name safe, and descriptions are clauses."""
    assert len(set(_NAMES)) == len(_NAMES) >= 50
    for reading in READINGS:
        assert re.fullmatch(r"[a-z]+(-([a-z]+|[0-9]+))*", reading.name)
        assert not reading.says.endswith(".")
        assert not reading.dated.endswith(".")


def test_right_output_is_the_oracle() -> None:
    """What readings are compared with is the oracle's output in the query's type."""
    case = replace(CASES["bsh-past-float"], dtype=Dtype.BFLOAT16)
    inputs = draw_inputs(case)
    right = right_output(case.spec, inputs)
    np.testing.assert_array_equal(right, attend(case.spec, inputs).output.astype(right.dtype))
    assert right.dtype == inputs.query.dtype
